"use strict";

const $ = (id) => document.getElementById(id);
const STORE = "symphony-chat";

let chat = load();
let advised = false; // one advisory a turn, on its first keystroke
let running = null; // AbortController of the reply being streamed

function load() {
  try {
    const stored = JSON.parse(localStorage.getItem(STORE));
    if (stored && stored.session && Array.isArray(stored.messages)) return stored;
  } catch { /* unreadable: start over */ }
  return fresh();
}

function fresh() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  const session = "web-" + Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
  return { session, messages: [] };
}

function save() {
  try {
    localStorage.setItem(STORE, JSON.stringify(chat));
  } catch { /* storage full or refused: the chat goes on without it */ }
}

function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

async function errorOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `HTTP ${response.status}`;
  }
}

function addTurn(role, text, figures) {
  const turn = document.createElement("div");
  turn.className = `turn ${role}`;
  const bubble = document.createElement("div");
  bubble.className = "bubble";
  bubble.textContent = text;
  turn.append(bubble);
  const line = document.createElement("div");
  line.className = "figures";
  line.textContent = figures || "";
  if (role === "assistant") turn.append(line);
  $("log").append(turn);
  $("log").scrollTop = $("log").scrollHeight;
  return { turn, bubble, line };
}

function drawAll() {
  $("log").replaceChildren();
  for (const message of chat.messages) addTurn(message.role, message.content, message.figures);
}

async function loadModels() {
  try {
    const response = await fetch("/v1/models");
    if (!response.ok) throw new Error(await errorOf(response));
    const models = (await response.json()).data.filter((model) => model.task === "generate");
    const ids = models.map((model) => model.id);
    const chosen = $("model").value || chat.model;
    $("model").replaceChildren(...ids.map((id) => new Option(id, id, false, id === chosen)));
    if (ids.length === 0) setTimeout(loadModels, 1000);
  } catch (error) {
    showError(`No models: ${error.message}`);
    setTimeout(loadModels, 3000);
  }
}

function advise() {
  if (advised || !$("model").value) return;
  advised = true;
  const body = { session_id: chat.session, model_id: $("model").value };
  fetch("/v1/advisories", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  }).catch(() => {}); // only a hint: the turn itself will tell if something is wrong
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
  }
}

function figuresOf(usage, ttft) {
  const parts = [`first token ${Math.round(ttft)} ms`];
  if (usage) {
    const cached = usage.prompt_tokens_details.cached_tokens;
    parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens cached`);
    parts.push(`${usage.completion_tokens} generated`);
  }
  return parts.join(" · ");
}

async function reply(view) {
  const started = performance.now();
  const outcome = { text: "", figures: "", finished: false };
  let ttft = null;
  let usage = null;
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    signal: running.signal,
    body: JSON.stringify({
      model: $("model").value,
      session_id: chat.session,
      messages: chat.messages.map(({ role, content }) => ({ role, content })),
      stream: true,
      stream_options: { include_usage: true },
    }),
  });
  if (!response.ok) throw new Error(await errorOf(response));
  try {
    for await (const data of events(response)) {
      if (data === "[DONE]") { outcome.finished = true; break; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      if (ttft === null) ttft = performance.now() - started;
      if (chunk.usage) usage = chunk.usage;
      const text = chunk.choices[0]?.delta.content;
      if (!text) continue;
      outcome.text += text;
      view.bubble.append(text);
      $("log").scrollTop = $("log").scrollHeight;
    }
    if (!outcome.finished) throw new Error("the stream broke off");
  } catch (error) {
    if (error.name !== "AbortError") showError(error.message);
  }
  outcome.figures = ttft === null ? "" : figuresOf(usage, ttft);
  return outcome;
}

async function send(text) {
  showError("");
  chat.model = $("model").value;
  chat.messages.push({ role: "user", content: text });
  save();
  const asked = addTurn("user", text);
  const view = addTurn("assistant", "");
  view.turn.classList.add("running");
  running = new AbortController();
  $("send").hidden = true;
  $("stop").hidden = false;
  const mine = chat;
  try {
    const { text: answer, figures } = await reply(view);
    view.line.textContent = figures;
    mine.messages.push({ role: "assistant", content: answer, figures });
  } catch (error) {
    view.turn.remove();
    asked.turn.remove();
    mine.messages.pop(); // it was not answered: give it back to its author
    $("text").value ||= text;
    if (error.name !== "AbortError") showError(error.message);
  } finally {
    view.turn.classList.remove("running");
    running = null;
    advised = false;
    $("send").hidden = false;
    $("stop").hidden = true;
    if (mine === chat) save();
  }
}

function submit() {
  const text = $("text").value.trim();
  if (!text || running) return;
  if (!$("model").value) { showError("No model is being served yet."); return; }
  $("text").value = "";
  grow();
  send(text);
}

function grow() {
  $("text").style.height = "auto";
  $("text").style.height = `${$("text").scrollHeight + 2}px`;
}

function newSession() {
  running?.abort();
  const old = chat;
  chat = fresh();
  advised = false;
  save();
  drawAll();
  showError("");
  $("text").focus();
  if (old.messages.length) {
    fetch(`/v1/sessions/${old.session}`, { method: "DELETE" }).catch(() => {});
  }
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
$("text").addEventListener("input", () => { advise(); grow(); });
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
$("stop").addEventListener("click", () => running?.abort());
$("new").addEventListener("click", newSession);
drawAll();
loadModels();
