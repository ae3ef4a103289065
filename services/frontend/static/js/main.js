import { ChatPage } from "./chat.js";
import { applyTheme } from "./settings.js";

applyTheme();
await new ChatPage().start();
