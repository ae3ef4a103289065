"""What the frontend measures, under the names that dashboards of other servers know."""

from shared.runtime.metrics import TOKEN_BUCKETS, counter, gauge, histogram

TTFT = histogram("time_to_first_token_seconds", "Request to first token, as its client sees it")
INTER_TOKEN = histogram("inter_token_latency_seconds", "Between two tokens of one choice")
E2E = histogram("e2e_request_latency_seconds", "Request to the end of its reply")
QUEUE = histogram("request_queue_time_seconds", "Arrival at the worker to first prefill")
PREFILL = histogram("request_prefill_time_seconds", "First prefill to first token")
DECODE = histogram("request_decode_time_seconds", "First token to last")
PROMPT_TOKENS = counter("prompt_tokens_total", "Tokens of prompts")
GENERATION_TOKENS = counter("generation_tokens_total", "Tokens generated")
PROMPT_LENGTH = histogram(
    "request_prompt_tokens", "Tokens of a choice's prompt", buckets=TOKEN_BUCKETS
)
REPLY_LENGTH = histogram(
    "request_generation_tokens", "Tokens of a choice, once it is over", buckets=TOKEN_BUCKETS
)
SUCCESS = counter("request_success_total", "Choices that ended as they should", ["finished_reason"])
FINISHED = {reason: SUCCESS.labels(reason) for reason in ("stop", "length", "abort")}
RUNNING = gauge("num_requests_running", "Requests for text whose client is waiting")
HTTP_ERRORS = counter("http_errors_total", "Errors answered, by HTTP status", ["code"])
SESSION_STORE_ERRORS = counter("session_store_errors_total", "Session records not read or written")
SESSIONS_REUSED = counter(
    "session_prompts_total", "Prompts of named sessions, by whether stored tokens were extended",
    ["reused"],
)  # fmt: skip
RESPONSES_NOT_STORED = counter(
    "responses_not_stored_total", "Responses that were to be stored and are not"
)
JOBS = counter("frontend_jobs_total", "Jobs for one-shot models by how they ended", ["outcome"])
JOB_MISSES = counter("frontend_job_misses_total", "Jobs without a result by their deadline")
JOB_LATENCY = histogram("frontend_job_latency_seconds", "Request to the last of its results")
HUNG_UP = counter("connections_hung_up_total", "Connections closed on clients", ["reason"])
UNSENT = counter(
    "frontend_unsent_total", "Messages to the scheduler dropped because too many wait", ["kind"]
)
HINTS_THROTTLED = counter(
    "hints_throttled_total", "Advisories refused because their sender's came to nothing"
)
KV_HINTS = counter("kv_hints_total", "Actions of kv_hints in requests for text", ["action"])
