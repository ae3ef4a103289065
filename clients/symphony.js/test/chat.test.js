import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";

import { Reply, Symphony, SymphonyError } from "../index.js";
import { DONE, delta, event, json, serve, stream } from "./server.js";

const HI = [{ role: "user", content: "hi" }];
const USAGE = { prompt_tokens: 5, completion_tokens: 2, total_tokens: 7 };

async function collect(session, options) {
  const reply = new Reply();
  for await (const told of session.chat(HI, options)) reply.add(told);
  return reply;
}

test("a turn's deltas add up to its reply", async (t) => {
  const { url, asked } = await serve(t, (_, response) => {
    stream(
      response,
      delta({ role: "assistant", content: "" }),
      delta({ reasoning_content: "hm" }),
      delta({ content: "Ja, " }),
      delta({ content: "schön" }),
      delta({ tool_calls: [{ index: 0, id: "c1", function: { name: "weather", arguments: "" } }] }),
      delta({ tool_calls: [{ index: 0, function: { arguments: '{"city":' } }] }),
      delta({ tool_calls: [{ index: 0, function: { arguments: '"Oslo"}' } }] }),
      delta({}, "tool_calls"),
      { choices: [], usage: USAGE },
      DONE,
    );
    response.end();
  });
  const symphony = new Symphony({ baseURL: `${url}/v1/`, apiKey: "k", model: "base" });
  const reply = await collect(symphony.session("fox"), { temperature: 0, model: "adapter" });
  assert.equal(reply.finishReason, "tool_calls");
  assert.deepEqual(reply.usage, USAGE);
  assert.deepEqual(reply.message, {
    role: "assistant",
    content: "Ja, schön",
    reasoning_content: "hm",
    tool_calls: [
      { id: "c1", type: "function", function: { name: "weather", arguments: '{"city":"Oslo"}' } },
    ],
  });
  const [{ method, path, headers, body }] = asked;
  assert.equal(`${method} ${path}`, "POST /v1/chat/completions");
  assert.equal(headers.authorization, "Bearer k");
  assert.deepEqual(body, {
    model: "adapter", messages: HI, session_id: "fox", temperature: 0,
    stream: true, stream_options: { include_usage: true },
  });
});

test("bytes may be cut within a character, lines within CRLF", async (t) => {
  const bytes = Buffer.from(
    `: hello\r\n\r\ndata: ${JSON.stringify(delta({ content: "größer 🦊" }))}\r\n\r\n${DONE}`,
  );
  const { url } = await serve(t, async (_, response) => {
    response.writeHead(200);
    for (const byte of bytes) {
      response.write(Buffer.of(byte));
      await new Promise(setImmediate);
    }
    response.end();
  });
  assert.equal((await collect(new Symphony({ baseURL: url }).session())).content, "größer 🦊");
});

test("a refusal has the server's words", async (t) => {
  const error = { message: "Too many.", type: "rate_limit_error", param: null, code: "tenant_quota" };
  const { url } = await serve(t, (_, response) => json(response, 429, { error }, { "Retry-After": "3" }));
  await assert.rejects(collect(new Symphony({ baseURL: url }).session()), (thrown) => {
    assert.ok(thrown instanceof SymphonyError);
    assert.deepEqual({ ...thrown }, {
      name: "SymphonyError", status: 429, code: "tenant_quota", type: "rate_limit_error", param: null,
      retryAfterS: 3,
    });
    return thrown.message === "Too many.";
  });
});

test("what is no answer of ours is told by its status", async (t) => {
  const { url } = await serve(t, (_, response) => response.writeHead(502).end("<html>"));
  const thrown = { status: 502, message: "The server answered with HTTP 502." };
  await assert.rejects(new Symphony({ baseURL: url }).models(), thrown);
});

test("a stream's own error, no event, and no end are told apart", async (t) => {
  const first = event(delta({ content: "a" }));
  const endings = {
    worker_lost: event({ error: { message: "It broke.", code: "worker_lost" } }),
    bad_event: "data: {nonsense\n\n",
    stream_broken: "",
  };
  const { url } = await serve(t, ({ body }, response) => {
    stream(response, first, endings[body.model]);
    response.end();
  });
  for (const code of Object.keys(endings)) {
    const reply = new Reply();
    const turn = new Symphony({ baseURL: url }).session().chat(HI, { model: code });
    await assert.rejects(async () => {
      for await (const told of turn) reply.add(told);
    }, { name: "SymphonyError", code });
    assert.equal(reply.content, "a");
  }
});

test("a connection that is lost is told", async (t) => {
  const { url } = await serve(t, (_, response) => {
    stream(response, delta({ content: "a" }));
    setTimeout(() => response.destroy(), 20);
  });
  const lost = { code: "stream_broken", message: "The connection was lost." };
  await assert.rejects(collect(new Symphony({ baseURL: url }).session()), lost);
  const nobody = new Symphony({ baseURL: "http://127.0.0.1:9" });
  await assert.rejects(collect(nobody.session()), { code: "connection_failed" });
});

test("aborting and leaving the loop both hang up", async (t) => {
  const hungUp = [];
  const { url } = await serve(t, (_, response) => {
    hungUp.push(once(response, "close"));
    stream(response, delta({ content: "a" }));
  });
  const session = new Symphony({ baseURL: url }).session();
  const abort = new AbortController();
  await assert.rejects(async () => {
    for await (const told of session.chat(HI, { signal: abort.signal })) {
      if (told.type === "content") abort.abort();
    }
  }, { name: "AbortError" });
  for await (const told of session.chat(HI)) if (told.type === "content") break;
  await Promise.all(hungUp);
  assert.equal(hungUp.length, 2);
});

test("forgetting what is not known is no error", async (t) => {
  let status = 404;
  const { url, asked } = await serve(t, (_, response) => json(response, status, { error: {} }));
  const session = new Symphony({ baseURL: url }).session("a/b c");
  await session.forget();
  assert.equal(asked[0].path, "/v1/sessions/a%2Fb%20c");
  status = 503;
  await assert.rejects(session.forget(), { status: 503 });
});

test("what cannot be is refused at once", async () => {
  assert.throws(() => new Symphony(), TypeError);
  const symphony = new Symphony({ baseURL: "http://x" });
  for (const id of ["", ".", "..", "x".repeat(257), 5]) {
    assert.throws(() => symphony.session(id), TypeError);
  }
  assert.notEqual(symphony.session().id, symphony.session().id);
  await assert.rejects(symphony.session().chat(HI, { n: 2 }).next(), TypeError);
});
