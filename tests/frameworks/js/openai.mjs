// The openai client for npm: chat, stream, a tool's round trip, a form, responses, errors.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { default: OpenAI } = createRequire(import.meta.url)("openai"); // by NODE_PATH
const { BASE_URL: baseURL, MODEL: model, SCHEMA } = process.env;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const schema = JSON.parse(SCHEMA);
const question = { role: "user", content: "Where to?" };
const asked = { model, temperature: 0, max_tokens: 900, messages: [question] };
const short = { ...asked, max_tokens: 20 };

const said = await client.chat.completions.create(short);
const text = said.choices[0].message.content;
assert(text && said.usage.completion_tokens > 0);
let streamed = "";
for await (const piece of await client.chat.completions.create({ ...short, stream: true })) {
  streamed += piece.choices[0]?.delta.content ?? "";
}
assert.equal(streamed, text);

const visited = [];
const runner = client.chat.completions.runTools({
  ...asked,
  stream: true,
  tool_choice: { type: "function", function: { name: "go" } },
  tools: [
    {
      type: "function",
      function: {
        name: "go",
        description: "Go there.",
        parameters: schema,
        parse: JSON.parse,
        function: (city) => {
          visited.push(city);
          return `it rains in ${city.name}`;
        },
      },
    },
  ],
});
await runner.finalChatCompletion();
assert(visited.length && visited.every((city) => typeof city.name === "string"));
const results = runner.messages;
assert.equal(results.at(-1).role, "tool");
const after = await client.chat.completions.create({ ...short, messages: results });
assert(after.choices[0].message.content);

const form = { name: "city", schema, strict: true };
const filled = await client.chat.completions.parse({
  ...asked,
  response_format: { type: "json_schema", json_schema: form },
});
assert.equal(typeof JSON.parse(filled.choices[0].message.content).size, "number");

const first = await client.responses.create({ model, input: "Hello?", max_output_tokens: 20 });
assert(first.output_text);
const stream = client.responses.stream({
  model,
  input: "Why?",
  previous_response_id: first.id,
  text: { format: { type: "json_schema", ...form } },
});
let deltas = "";
stream.on("response.output_text.delta", (event) => (deltas += event.delta));
const second = await stream.finalResponse();
assert.equal(second.output_text, deltas);
assert.equal(typeof JSON.parse(deltas).size, "number");

await assert.rejects(client.chat.completions.create({ ...short, model: "gpt-x" }), (error) => {
  assert(error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  return true;
});
