// The AI SDK by both of its providers: chat, stream, a tool's round trip, a form.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(import.meta.url); // by NODE_PATH
const ai = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { BASE_URL: baseURL, MODEL: model, SCHEMA } = process.env;
const schema = ai.jsonSchema(JSON.parse(SCHEMA));

const compatible = createOpenAICompatible({
  name: "symphony",
  baseURL,
  supportsStructuredOutputs: true,
});
const openai = createOpenAI({ baseURL, apiKey: "none" });
const prompt = "Where to?";

for (const asked of [compatible(model), openai.chat(model), openai.responses(model)]) {
  const settings = { model: asked, temperature: 0, maxOutputTokens: 900, maxRetries: 0 };
  const short = { ...settings, maxOutputTokens: 20 };

  const { text, usage } = await ai.generateText({ ...short, prompt });
  assert(text && usage.outputTokens > 0);
  const streamed = ai.streamText({ ...short, prompt });
  let whole = "";
  for await (const piece of streamed.textStream) whole += piece;
  assert.equal(whole, text);

  const visited = [];
  const go = ai.tool({
    description: "Go there.",
    inputSchema: schema,
    execute: async (city) => {
      visited.push(city);
      return `it rains in ${city.name}`;
    },
  });
  for (const ask of [ai.generateText, ai.streamText]) {
    visited.length = 0;
    const round = await ask({
      ...settings,
      prompt,
      tools: { go },
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" }),
      stopWhen: ai.stepCountIs(2),
    });
    await round.consumeStream?.();
    const steps = await round.steps;
    assert.equal(steps.length, 2);
    assert(visited.length && steps[0].toolResults.length === visited.length);
    assert.equal(steps[1].toolCalls.length, 0);
  }

  const form = ai.Output.object({ schema });
  const { output } = await ai.generateText({ ...settings, prompt, output: form });
  assert.equal(typeof output.size, "number");
  const growing = ai.streamText({ ...settings, prompt, output: form });
  let last;
  for await (const partial of growing.partialOutputStream) last = partial;
  assert.deepEqual(last, output);
}
