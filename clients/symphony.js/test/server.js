/** A server that answers as a test tells it, and remembers what it was asked. */

import { createServer } from "node:http";

/**
 * @param {(request: object, response: import("node:http").ServerResponse) => unknown} answer
 * @returns {Promise<{url: string, asked: object[]}>}
 */
export async function serve(t, answer) {
  const asked = [];
  const server = createServer(async (request, response) => {
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const text = Buffer.concat(chunks).toString();
    const { method, url, headers } = request;
    const entry = { method, path: url, headers, body: text ? JSON.parse(text) : null };
    asked.push(entry);
    await answer(entry, response);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${server.address().port}`, asked };
}

export function json(response, status, value, headers = {}) {
  response.writeHead(status, { "Content-Type": "application/json", ...headers });
  response.end(JSON.stringify(value));
}

export function stream(response, ...chunks) {
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  for (const chunk of chunks) response.write(typeof chunk === "string" ? chunk : event(chunk));
}

export function event(value) {
  return `data: ${JSON.stringify(value)}\n\n`;
}

export function delta(fields, finishReason = null) {
  return { choices: [{ index: 0, delta: fields, finish_reason: finishReason }] };
}

export const DONE = "data: [DONE]\n\n";
