// The chat page's modules that need no browser.

import assert from "node:assert/strict";
import { after, test } from "node:test";

const JS = new URL("../../../services/frontend/static/js/", import.meta.url);
const load = (name) => import(new URL(name, JS));

globalThis.document = {
  createElement: (tag) => ({ tag, append() {} }),
};

const { Malformed, chatOf } = await load("schema.js");
const { setAside, switchVersion, versionOf } = await load("versions.js");
const { contentWith } = await load("attachments.js");
const { highlighted } = await load("highlight.js");
const { chatsOf, fileOf } = await load("transfer.js");
const { bytes, nameOnHost, perSecond, shortName } = await load("units.js");
const { roundTop } = await load("chart.js");

after(() => setImmediate(() => process.exit())); // the tabs' channel stays open

const answer = (content) => ({ role: "assistant", content, state: "done" });
const user = (content) => ({ role: "user", content });
const chat = (fields = {}) => ({
  id: "web-1", title: "t", model: "m", settings: {}, messages: [user("hi"), answer("yes")], updatedAtMs: 5, ...fields,
});
const nested = (depth) => (depth === 0 ? answer("x") : { ...answer("y"), versions: [null, [nested(depth - 1)]] });

test("of a chat, known fields are kept and others left behind", () => {
  const found = chatOf(chat({ evil: 1, lease: "tab-1", messages: [{ ...user("a"), onclick: "x" }, answer("b")] }));
  assert.deepEqual(Object.keys(found).sort(), ["id", "lease", "messages", "model", "settings", "title", "updatedAtMs"]);
  assert.deepEqual(found.messages[0], user("a"));
});

test("what a chat may hold comes back as it was", () => {
  const whole = chat({
    isNamed: true,
    settings: {
      system: "s", tools: [{ type: "function", function: { name: "f", parameters: {} } }], reasoning_effort: "low",
      temperature: 0.5, top_p: null, max_tokens: 5, seed: 0,
    },
    messages: [
      { ...user("a"), files: [{ name: "f.txt", text: "x" }] },
      {
        ...answer(""), finish: "tool_calls", reasoning_content: "hm",
        tool_calls: [{ id: "c", type: "function", function: { name: "f", arguments: "{}" } }],
        figures: {
          usage: { prompt_tokens: 9, completion_tokens: 2, prompt_tokens_details: { cached_tokens: 3, cached_tokens_details: { pool: 3 } } },
          hintLeadMs: null, firstTokenMs: 12.5, tokensPerS: 80,
        },
      },
      { role: "tool", content: "r", tool_call_id: "c" },
      { ...answer("b"), versions: [[answer("c"), user("d")], null] },
    ],
  });
  assert.deepEqual(chatOf(whole), { ...whole, lease: null });
});

test("what is no chat is refused, whatever it is", () => {
  const bad = [
    null, 1, "x", [], {}, chat({ id: "../x" }), chat({ id: 3 }), chat({ title: {} }), chat({ messages: "x" }),
    chat({ messages: [null] }), chat({ messages: [{ role: "system", content: "x" }] }),
    chat({ messages: [{ role: "user", content: { toString: 1 } }] }), chat({ settings: [] }),
    chat({ settings: { tools: [{}] } }), chat({ settings: { tools: "x" } }), chat({ settings: { system: 1 } }),
    chat({ messages: [{ ...answer("a"), tool_calls: [{}] }] }), chat({ messages: [{ ...answer("a"), figures: "x" }] }),
    chat({ messages: [{ ...answer("a"), versions: [null, null] }] }),
    chat({ messages: [{ ...answer("a"), versions: [null, [user("not an answer")]] }] }),
    chat({ messages: [{ ...answer("a"), versions: [null, []] }] }),
    chat({ messages: [{ ...user("a"), files: [{ name: "x", text: null }] }] }),
    chat({ messages: Array(10_001).fill(user("x")) }), chat({ messages: [user("x".repeat(4_000_001))] }),
  ];
  for (const each of bad) assert.throws(() => chatOf(each), Malformed, JSON.stringify(each)?.slice(0, 100));
  const deep = chatOf(JSON.parse(JSON.stringify(chat({ messages: [nested(200)] }))));
  assert.ok(JSON.stringify(deep).length < 10_000, "deeper versions are left behind");
  const odd = chatOf(JSON.parse('{"id":"a","title":"t","messages":[],"__proto__":{"x":1},"updatedAtMs":-1}'));
  assert.equal(odd.x, undefined);
  assert.equal(odd.updatedAtMs, 0);
});

test("versions of an answer have each their own rest of the chat", () => {
  const messages = [user("a"), answer("one")];
  messages.push({ ...answer("two"), ...setAside(messages, 1) });
  assert.deepEqual(versionOf(messages[1]), { at: 1, num: 2 });
  messages.push(user("b"), answer("after two"));
  switchVersion(messages, 1, 0);
  assert.deepEqual(messages.map(({ content }) => content), ["a", "one"]);
  assert.deepEqual(versionOf(messages[1]), { at: 0, num: 2 });
  messages.push({ ...answer("three"), ...setAside(messages, 1) });
  assert.deepEqual(versionOf(messages[1]), { at: 2, num: 3 });
  switchVersion(messages, 1, 1);
  assert.deepEqual(messages.map(({ content }) => content), ["a", "two", "b", "after two"]);
  assert.deepEqual(chatOf(chat({ messages })).messages, messages);
  switchVersion(messages, 1, 7);
  assert.equal(messages.length, 4, "there is no such version");
});

test("an answer that never came is no version, and there is a limit", () => {
  const messages = [user("a"), { role: "assistant", content: "", state: "unanswered" }];
  assert.deepEqual(setAside(messages, 1), {});
  assert.deepEqual(setAside(messages, 1), {}, "nothing is there");
  messages.push(answer("0"));
  for (let num = 1; num < 50; num += 1) messages.push({ ...answer(`${num}`), ...setAside(messages, 1) });
  assert.deepEqual(versionOf(messages[1]), { at: 19, num: 20 });
});

test("files come before what was typed, in a fence that they do not end", () => {
  assert.equal(contentWith({ content: "hi" }), "hi");
  const files = [{ name: "a.md", text: "```\nx\n````\n" }];
  assert.equal(contentWith({ content: "hi", files }), "File a.md:\n`````\n```\nx\n````\n`````\n\nhi");
  assert.equal(contentWith({ content: "", files: [{ name: "b", text: "x" }] }), "File b:\n```\nx\n```");
});

test("exported chats are imported once, as chats of their own", () => {
  const text = fileOf([chat(), chat({ id: "web-2", lease: "tab-1" })]);
  const { chats, numKnown } = chatsOf(text, []);
  assert.equal(numKnown, 0);
  assert.equal(chats.length, 2);
  for (const each of chats) {
    assert.match(each.id, /^web-[0-9a-f]{24}$/);
    assert.equal(each.lease, null);
  }
  const running = { ...answer("a"), state: "running" };
  const cut = chatsOf(fileOf([chat({ messages: [{ ...running, versions: [null, [running]] }] })]), []).chats[0];
  assert.deepEqual([cut.messages[0].state, cut.messages[0].versions[1][0].state], ["broken", "broken"]);
  assert.equal(chatOf(chat({ messages: [running] })).messages[0].state, "running", "in this browser's storage");
  assert.equal(chatsOf(text, chats).numKnown, 2, "they were imported before");
  assert.equal(chatsOf(text, [{ id: "web-1", updatedAtMs: 5 }]).numKnown, 1, "it is still here");
  assert.equal(chatsOf(text, [{ id: "web-1", updatedAtMs: 4 }]).numKnown, 0, "it was another one");
});

test("a file that was not exported here imports nothing that is no chat", () => {
  for (const text of ["", "{", "null", "[]", '{"chats": []}', '{"format":"symphony-chats","version":2,"chats":[]}']) {
    assert.throws(() => chatsOf(text, []), Malformed, text);
  }
  const mixed = JSON.parse(fileOf([chat(), chat({ id: "web-2" })]));
  mixed.chats.push(null, { id: "web-3" }, "x");
  const { chats, numMalformed } = chatsOf(JSON.stringify(mixed), []);
  assert.deepEqual([chats.length, numMalformed], [2, 3]);
  const many = { ...mixed, chats: Array(2_001).fill(null) };
  assert.throws(() => chatsOf(JSON.stringify(many), []), /At most 2000/);
});

const spans = (text, language) =>
  highlighted(text, language)?.filter((node) => typeof node !== "string").map((node) => [node.className, node.textContent]);

test("code has its colours, and every character of it", () => {
  assert.deepEqual(spans('def f(): # "c"\n  return "a\\"b" + 1', "python"), [
    ["hl-keyword", "def"], ["hl-name", "f"], ["hl-comment", '# "c"'], ["hl-keyword", "return"],
    ["hl-string", '"a\\"b"'], ["hl-number", "1"],
  ]);
  assert.deepEqual(spans("fn f<'a>(x: &'a str) {}", "rust").map(([, text]) => text), ["fn", "str"]);
  assert.deepEqual(spans('{"a": "b"}', "json"), [["hl-name", '"a"'], ["hl-string", '"b"']]);
  assert.deepEqual(spans("SELECT 1 -- x", "SQL")[0], ["hl-keyword", "SELECT"]);
  for (const language of ["js", "ts", "py", "bash", "c++", "java", "go", "rs", "rb", "lua", "sql", "yaml", "css", "json", "html", "diff"]) {
    for (const text of ["", "a", '"', "/* x", "`a\n", "<a b='", "+x\n-y", "#[", "'''", "é ü 漢", "a: #b {}"]) {
      const nodes = highlighted(text, language);
      assert.equal(nodes.map((node) => node.textContent ?? node).join(""), text, language);
    }
  }
  for (const language of ["", "klingon", "constructor", "__proto__"]) assert.equal(highlighted("x", language), null);
});

test("numbers and names are for people", () => {
  assert.equal(shortName("fe-0-041fbce9ee855dc82aaf18cf"), "fe-0-041f");
  assert.equal(shortName("tracker-0"), "tracker-0");
  assert.equal(nameOnHost("box-1-w0", "box-1"), "w0");
  assert.equal(nameOnHost("w7", "box"), "w7");
  assert.deepEqual([0, 1023, 1536, 2 ** 50].map(bytes), ["0 B", "1,023 B", "1.5 KiB", "1,024 TiB"]);
  assert.deepEqual([0, 0.028, 12.34, 123_456].map(perSecond), ["0/s", "0.028/s", "12.3/s", "123K/s"]);
  assert.deepEqual([0, 0.3, 1, 1.2, 480, 5000].map(roundTop), [1, 0.5, 1, 2, 500, 5000]);
});
