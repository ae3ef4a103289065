// The Anthropic client for npm: a message, a stream, and its runner of tools, whole and streamed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const load = createRequire(import.meta.url); // by NODE_PATH
const { default: Anthropic } = load("@anthropic-ai/sdk");
const { betaTool } = load("@anthropic-ai/sdk/helpers/beta/json-schema");
const { BASE_URL, MODEL: model, SCHEMA } = process.env;
const baseURL = BASE_URL.replace(/\/v1$/, "");
const client = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Where to?" }];
const short = { model, max_tokens: 20, messages };

const said = await client.messages.create(short);
assert(said.content[0].text && said.usage.output_tokens > 0);
const stream = client.messages.stream(short);
let text = "";
stream.on("text", (piece) => (text += piece));
assert.equal((await stream.finalMessage()).content[0].text, text);

for (const isStreamed of [false, true]) {
  const asked = [];
  const go = betaTool({
    name: "go",
    description: "Go there.",
    inputSchema: JSON.parse(SCHEMA),
    run: ({ name, size }) => {
      asked.push(`${name}${size}`);
      return "it rains";
    },
  });
  const runner = client.beta.messages.toolRunner({
    model,
    max_tokens: 900,
    max_iterations: 2,
    stream: isStreamed,
    tools: [go],
    tool_choice: { type: "any", disable_parallel_tool_use: true },
    messages,
  });
  const turns = [];
  for await (const turn of runner) {
    turns.push(isStreamed ? await turn.finalMessage() : turn);
  }
  assert.deepEqual(turns.map((turn) => turn.stop_reason), ["tool_use", "tool_use"]);
  assert.equal(turns[1].content.at(-1).type, "tool_use");
  assert(asked.length >= 1);
}
