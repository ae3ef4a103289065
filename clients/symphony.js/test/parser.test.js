import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser, SymphonyError } from "../index.js";

function parse(...chunks) {
  const parser = new EventParser();
  return chunks.flatMap((chunk) => [...parser.push(chunk)]);
}

const EVENTS = [
  ["one event", "data: a\n\n", ["a"]],
  ["CRLF", "data: a\r\n\r\ndata: b\r\n\r\n", ["a", "b"]],
  ["CR alone", "data: a\r\rdata: b\r\r", ["a", "b"]],
  ["several lines", "data: a\ndata: b\n\n", ["a\nb"]],
  ["one space is not part of it", "data:  a\n\ndata:b\n\n", [" a", "b"]],
  ["comments and other fields", ": ping\n\nevent: x\nid: 1\nretry: 2\ndata: a\n\n", ["a"]],
  ["a field without a colon", "data\n\n", [""]],
  ["an event without an end", "data: a\n\ndata: b\n", ["a"]],
  ["ends of lines that JSON may hold", "data: a\u2028\u0085b\n\n", ["a\u2028\u0085b"]],
];

for (const [name, text, expected] of EVENTS) {
  test(`parser: ${name}`, () => {
    assert.deepEqual(parse(text), expected);
  });
  test(`parser: ${name}, cut anywhere`, () => {
    assert.deepEqual(parse(...text), expected);
    for (let at = 0; at <= text.length; at += 1) {
      assert.deepEqual(parse(text.slice(0, at), "", text.slice(at)), expected);
    }
  });
}

test("parser: a long line that comes in small pieces does not take long", () => {
  const piece = "x".repeat(64);
  const parser = new EventParser();
  const got = [];
  const startedAtMs = performance.now();
  for (const chunk of ["data: ", ...Array(20_000).fill(piece), "\n\n"]) got.push(...parser.push(chunk));
  assert.equal(got[0].length, 20_000 * 64);
  assert.ok(performance.now() - startedAtMs < 5_000);
});

test("parser: an event has a limit", () => {
  const mebibyte = "x".repeat(2 ** 20);
  assert.throws(
    () => parse("data: ", ...Array(20).fill(mebibyte)),
    (error) => error instanceof SymphonyError && error.code === "bad_event",
  );
  assert.throws(() => parse(...Array(20).fill(`data: ${mebibyte}\n`)), SymphonyError);
});
