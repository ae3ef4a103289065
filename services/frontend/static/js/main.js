import { ChatPage } from "./chat.js";
import { applyTheme } from "./theme.js";

applyTheme();
await new ChatPage().start();
