export interface SymphonyErrorDetails {
  status?: number | null;
  /** The server's, or `connection_failed`, `stream_broken`, `bad_event`. */
  code?: string | null;
  type?: string | null;
  param?: string | null;
  retryAfterS?: number | null;
  cause?: unknown;
}

/** What the server refused, or why it could not be asked. */
export class SymphonyError extends Error {
  constructor(message: string, details?: SymphonyErrorDetails);
  readonly status: number | null;
  readonly code: string | null;
  readonly type: string | null;
  readonly param: string | null;
  readonly retryAfterS: number | null;
}

export interface SymphonyOptions {
  /** With or without `/v1`; by default the page's own server. */
  baseURL?: string | URL;
  apiKey?: string | null;
  /** Asked where a session or a turn names none. */
  model?: string | null;
  fetch?: typeof globalThis.fetch;
}

export interface Model {
  id: string;
  object: "model";
  created: number;
  owned_by: string;
  /** Of an adapter: the model that it changes. */
  parent: string | null;
  max_model_len: number | null;
  task: string;
  [field: string]: unknown;
}

export interface RequestOptions {
  body?: unknown;
  signal?: AbortSignal;
  keepalive?: boolean;
}

/** A server, and how to ask it. */
export class Symphony {
  constructor(options?: SymphonyOptions);
  readonly baseURL: string;
  apiKey: string | null;
  model: string | null;
  /** A conversation, by the name that the server knows it by; without one, a new one. */
  session(id?: string, options?: { model?: string | null }): Session;
  /** What can be asked now. */
  models(options?: { signal?: AbortSignal }): Promise<Model[]>;
  /** Send a request below `/v1`; rejects with a SymphonyError unless it succeeds. */
  request(method: string, path: string, options?: RequestOptions): Promise<Response>;
}

/** What the server makes of a hint. */
export interface AdvisoryState {
  session_id: string;
  state: "expected" | "placed" | "used" | "late" | "expired" | "overtaken" | "invalidated";
  worker_id: string | null;
  [field: string]: unknown;
}

export interface AdviseOptions {
  /** Seconds from now, if it is known. */
  expectedArrival?: number;
  /** 0 to 9. */
  priority?: number;
  /** For how long the turn is expected, in milliseconds. */
  ttlMs?: number;
}

export interface WatchOptions {
  /** After how long without text the hint is taken back. */
  emptyAfterMs?: number;
  /** Called with whether a turn is announced, as often as that changes. */
  onAdvised?: (isAdvised: boolean) => void;
}

export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content?: unknown;
  [field: string]: unknown;
}

export interface ChatOptions {
  signal?: AbortSignal;
  model?: string;
  /** Anything else is a field of the request. */
  [field: string]: unknown;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  prompt_tokens_details?: {
    cached_tokens: number;
    /** With the field `return_cached_tokens_details`: tokens by the place they were in. */
    cached_tokens_details?: { [place: string]: number };
  };
  [field: string]: unknown;
}

export type ChatEvent =
  /** The answer begins. `hintLeadMs`: by how much the hint was ahead of the turn; null: none was. */
  | { type: "start"; hintLeadMs: number | null }
  | { type: "content"; text: string }
  | { type: "reasoning"; text: string }
  /** A piece of a call: `id` and `name` in its first one, `arguments` to be appended. */
  | { type: "tool_call"; index: number; id: string | null; name: string | null; arguments: string }
  | { type: "finish"; reason: string }
  | { type: "usage"; usage: Usage };

/** What can be watched: a textarea, an input, anything editable. */
export interface Watchable {
  value?: string;
  textContent?: string | null;
  addEventListener(type: "input", listener: () => void): void;
  removeEventListener(type: "input", listener: () => void): void;
}

/** A conversation. Made by `Symphony.session`. */
export class Session {
  private constructor();
  readonly id: string;
  /** Asked where a turn names none. */
  model: string | null;
  /** Whether the coming turn was announced. */
  readonly isAdvised: boolean;
  /** Announce each turn as it begins to be typed, once; gives back what ends it. */
  watch(element: Watchable, options?: WatchOptions): () => void;
  /** Say that the next turn is coming. Never rejects; null: what became of it is unknown. */
  advise(options?: AdviseOptions): Promise<AdvisoryState | null>;
  /** Say that it is not coming after all. Never rejects. */
  invalidate(options?: { keepalive?: boolean }): Promise<AdvisoryState | null>;
  /** Take a turn, with the whole history. Sent when the first event is asked for. */
  chat(messages: readonly Message[], options?: ChatOptions): AsyncGenerator<ChatEvent, void, void>;
  /** Have the server forget the session and its memory. */
  forget(): Promise<void>;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as far as it came. */
  arguments: string;
}

/** What a turn's events add up to. */
export class Reply {
  content: string;
  reasoning: string;
  toolCalls: ToolCall[];
  finishReason: string | null;
  usage: Usage | null;
  hintLeadMs: number | null;
  readonly isEmpty: boolean;
  /** As it goes into the history of the next turn. */
  readonly message: Message;
  add(event: ChatEvent): this;
}

/** Server-sent events as they come, cut anywhere. */
export class EventParser {
  push(text: string): Generator<string, void, void>;
}
