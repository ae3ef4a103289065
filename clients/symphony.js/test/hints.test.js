import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Symphony } from "../index.js";
import { DONE, delta, json, serve, stream } from "./server.js";

const HI = [{ role: "user", content: "hi" }];

class Box extends EventTarget {
  value = "";

  type(text) {
    this.value = text;
    this.dispatchEvent(new Event("input"));
  }
}

async function answer({ path }, response) {
  if (path === "/v1/chat/completions") {
    stream(response, delta({ content: "a" }), DONE);
    response.end();
  } else {
    json(response, 202, { state: "placed" });
  }
}

async function drain(turn) {
  const told = [];
  for await (const each of turn) told.push(each);
  return told;
}

async function until(condition) {
  while (!condition()) await sleep(2);
}

const names = (asked) => asked.map(({ method, path }) => `${method} ${path.split("/")[2]}`);

test("one advisory a turn, on its first character", async (t) => {
  const { url, asked } = await serve(t, answer);
  const session = new Symphony({ baseURL: url, model: "m" }).session("fox");
  const box = new Box();
  session.watch(box);
  box.type("  ");
  assert.equal(session.isAdvised, false);
  box.type("h");
  box.type("hi");
  await until(() => asked.length === 1);
  assert.deepEqual(asked[0].body, { session_id: "fox", model_id: "m" });
  await sleep(30);
  const [start] = await drain(session.chat(HI));
  assert.equal(start.type, "start");
  assert.ok(start.hintLeadMs >= 25, `${start.hintLeadMs}`);
  box.value = "";
  assert.equal(session.isAdvised, false);
  box.type("again");
  await until(() => asked.length === 3);
  assert.deepEqual(names(asked), ["POST advisories", "POST chat", "POST advisories"]);
});

test("a turn without a hint has no lead", async (t) => {
  const { url } = await serve(t, answer);
  const [start] = await drain(new Symphony({ baseURL: url }).session().chat(HI));
  assert.equal(start.hintLeadMs, null);
});

test("what is typed during an answer announces the next turn when it is over", async (t) => {
  let finish;
  const { url, asked } = await serve(t, async (request, response) => {
    if (request.method !== "POST" || request.path !== "/v1/chat/completions") {
      return answer(request, response);
    }
    stream(response, delta({ content: "a" }));
    finish = () => response.end(DONE);
  });
  const session = new Symphony({ baseURL: url }).session();
  const box = new Box();
  session.watch(box);
  const turn = drain(session.chat(HI));
  await until(() => finish);
  box.type("and");
  await sleep(20);
  assert.deepEqual(names(asked), ["POST chat"]);
  finish();
  await turn;
  await until(() => asked.length === 2);
  assert.deepEqual(names(asked), ["POST chat", "POST advisories"]);
});

test("emptied for a while, it is taken back; typed again, announced again", async (t) => {
  const { url, asked } = await serve(t, answer);
  const session = new Symphony({ baseURL: url }).session("a b");
  const box = new Box();
  const told = [];
  const stop = session.watch(box, { emptyAfterMs: 40, onAdvised: (is) => told.push(is) });
  box.type("h");
  box.type("");
  box.type("x"); // within the while: still expected
  await until(() => asked.length === 1);
  await sleep(80);
  assert.deepEqual(names(asked), ["POST advisories"]);
  box.type("");
  await until(() => asked.length === 2);
  assert.equal(asked[1].path, "/v1/advisories/a%20b");
  box.type("y");
  await until(() => asked.length === 3);
  assert.deepEqual(names(asked), ["POST advisories", "DELETE advisories", "POST advisories"]);
  assert.deepEqual(told, [true, false, true]);
  stop();
  box.type("");
  await sleep(80);
  assert.equal(asked.length, 3);
});

test("the page is left: what was announced is taken back", async (t) => {
  const { url, asked } = await serve(t, answer);
  const page = new EventTarget();
  for (const name of ["addEventListener", "removeEventListener"]) {
    globalThis[name] = page[name].bind(page);
    t.after(() => delete globalThis[name]);
  }
  const session = new Symphony({ baseURL: url }).session();
  const box = new Box();
  session.watch(box);
  page.dispatchEvent(new Event("pagehide"));
  box.type("h");
  await until(() => asked.length === 1);
  page.dispatchEvent(new Event("pagehide"));
  page.dispatchEvent(new Event("pagehide"));
  await until(() => asked.length === 2);
  page.dispatchEvent(new Event("pageshow")); // the text is still there
  await until(() => asked.length === 3);
  assert.deepEqual(names(asked), ["POST advisories", "DELETE advisories", "POST advisories"]);
});

test("hints keep their order, and one that its turn overtook is not sent", async (t) => {
  const held = [];
  const { url, asked } = await serve(t, (request, response) => {
    if (request.path.startsWith("/v1/advisories")) held.push(response);
    else return answer(request, response);
  });
  const session = new Symphony({ baseURL: url }).session();
  const first = session.advise({ expectedArrival: 2.5, priority: 3, ttlMs: 9000 });
  const second = session.invalidate();
  const third = session.advise();
  await until(() => held.length === 1);
  const { session_id: id, ...fields } = asked[0].body;
  assert.equal(id, session.id);
  assert.deepEqual(fields, { expected_arrival: 2.5, priority: 3, ttl_ms: 9000 });
  await drain(session.chat(HI)); // waits for none of them
  json(held[0], 202, { state: "placed" });
  assert.deepEqual(await first, { state: "placed" });
  await until(() => held.length === 2);
  json(held[1], 200, { state: "invalidated" });
  assert.deepEqual(await second, { state: "invalidated" });
  assert.equal(await third, null);
  assert.deepEqual(names(asked), ["POST advisories", "POST chat", "DELETE advisories"]);
});

test("no hint throws, whatever the server does", async (t) => {
  let status = 429;
  const { url } = await serve(t, (_, response) => {
    if (status === 0) response.destroy();
    else response.writeHead(status).end("no JSON");
  });
  for (status of [429, 500, 202, 0]) {
    const session = new Symphony({ baseURL: url }).session();
    assert.equal(await session.advise(), null);
    assert.equal(await session.invalidate(), null);
  }
  const broken = new Symphony({ baseURL: url, fetch: () => { throw new Error("no network"); } });
  assert.equal(await broken.session().advise(), null);
});
