"""The files of ``../shared/traces``: how each is replayed, whose it is, and where all of it is."""

from dataclasses import dataclass

GITHUB = "https://github.com"


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file.

    Attributes:
        path: within the folder of traces.
        replay: for `--profile replay --trace`, several with commas between; empty: it is no load.
        why: it is none, and what it is for.
        licence: as its source states it.
        source: where it is from: the whole of it, unless `cut` says that it is a part.
        cut: what is not here.
    """

    path: str
    replay: str
    licence: str
    source: str
    cut: str = ""
    why: str = ""

    @property
    def replays(self) -> list[str]:
        """Names for `--trace`."""
        return [name.strip() for name in self.replay.split(",") if name.strip()]


def _of(repository: str, path: str = "") -> str:
    return f"{GITHUB}/{repository}" + (f" {path}" if path else "")


FILES = (
    TraceFile(
        "mooncake/conversation_trace.jsonl.gz",
        "mooncake, documents, prefill-documents", "Apache-2.0",
        _of("kvcache-ai/Mooncake", "FAST25-release/traces"),
    ),
    TraceFile(
        "mooncake/arxiv_trace_first1000.jsonl.gz", "mooncake-arxiv", "Apache-2.0",
        _of("wxsms/dynamo", "lib/bench/testdata/mooncake_trace_1000.jsonl"),
        cut=f"1,000 rows, the whole trace is in {_of('kvcache-ai/Mooncake')}",
    ),
    TraceFile(
        "burstgpt/burstgpt3_first400.csv.gz", "burstgpt, burstgpt-10x", "CC BY 4.0",
        _of("IsabellaLiu99/burstgpt_analysis", "burstgpt3_slice.csv"),
        cut="400 rows of BurstGPT_3.csv",
    ),
    TraceFile(
        "burstgpt/burstgpt1_week1_minute_tokens.csv.gz", "", "CC BY 4.0",
        _of("IsabellaLiu99/burstgpt_analysis", "data used.zip"), cut="BurstGPT_1.csv by minutes",
        why="counts over time, of which no request is known",
    ),
    TraceFile(
        "burstgpt/burstgpt1_daily.csv", "", "CC BY 4.0",
        _of("IsabellaLiu99/burstgpt_analysis", "data used.zip"), cut="BurstGPT_1.csv by days",
        why="counts over time, of which no request is known",
    ),
    TraceFile(
        "burstgpt/burstgpt1_hour_of_day.csv", "", "CC BY 4.0",
        _of("IsabellaLiu99/burstgpt_analysis", "data used.zip"), cut="BurstGPT_1.csv by hours",
        why="counts over time, of which no request is known",
    ),
    TraceFile(
        "azure/azure_llm_2023_conv.csv.gz", "azure", "CC BY 4.0",
        _of("Azure/AzurePublicDataset", "data"),
    ),
    TraceFile(
        "servegen/client_rates.csv.gz", "servegen", "Apache-2.0",
        _of("alibaba/ServeGen", "data/*/*/chunk-*-trace.csv"),
    ),
    TraceFile(
        "servegen/client_length_quantiles.csv.gz", "servegen", "Apache-2.0",
        _of("alibaba/ServeGen", "data/*/*/chunk-*-dataset.json"), cut="quantiles of histograms",
    ),
    TraceFile(
        "lora/lmsys_arena_27clients_600s.csv.gz", "lmsys", "Apache-2.0",
        _of("Ying1123/VTC-artifact", "fair_bench/real_trace.pkl"),
    ),
    TraceFile(
        "functions/azure_functions_2019_1250fn_1day.csv.gz", "", "MIT, CC BY 4.0",
        _of("vhive-serverless/invitro", "data/traces/50-2500/1250_inv.csv"),
        cut=f"a sample, the whole trace is in {_of('Azure/AzurePublicDataset')}",
        why="--profile adapters --popularity maf",
    ),
    TraceFile(
        "functions/azure_functions_2021_199rows.csv.gz", "", "MIT, CC BY 4.0",
        _of("vhive-serverless/invitro", "data/traces/example/Azure2021/Azure2021_200.csv"),
        cut=f"a sample, the whole trace is in {_of('Azure/AzurePublicDataset')}",
        why="calls of functions, without tokens",
    ),
    TraceFile(
        "agents/parrot_metagpt_calls.jsonl.gz",
        "metagpt, metagpt-4, metagpt-8, metagpt-12", "MIT",
        _of("microsoft/ParrotServe", "artifact/workloads/metagpt"),
    ),
    TraceFile(
        "agents/metagpt_log_calls.csv.gz", "", "MIT",
        _of("FoundationAgents/MetaGPT", "logs/log.txt"), why="one run: `metagpt` has more",
    ),
    TraceFile(
        "agents/lmcache_agent_steps.jsonl.gz", "lmcache-agents", "Apache-2.0",
        _of("LMCache/lmcache-agent-trace", "miniswe, magagent"),
    ),
    TraceFile(
        "agents/taubench_airline_gpt4o.jsonl.gz", "taubench", "MIT",
        _of("sierra-research/tau-bench", "historical_trajectories/gpt-4o-airline.json"),
    ),
    TraceFile(
        "agents/sweagent_demo_steps.jsonl.gz", "sweagent", "MIT",
        _of("SWE-agent/SWE-agent", "trajectories, tests/test_data/trajectories"),
    ),
    TraceFile(
        "agents/whoandwhen_steps.csv.gz", "", "MIT",
        _of("mingyin1/Agents_Failure_Attribution", "Who&When"), cut="its text",
        why="an order of agents, without times or tokens",
    ),
    TraceFile(
        "agents/dynamo_pi_agent_requests.jsonl.gz", "", "Apache-2.0",
        _of("wxsms/dynamo", "lib/bench/testdata/pi_request_trace.jsonl.gz"),
        why="one run of one agent and its scouts",
    ),
    TraceFile(
        "text/oasst_en_100_trees.jsonl.gz", "oasst_en_100_trees", "Apache-2.0",
        _of("LAION-AI/Open-Assistant", "model/model_eval/manual/data/en_100_message.jsonl"),
    ),
    TraceFile(
        "text/oasst_zh_689.jsonl.gz", "oasst_zh_689", "Apache-2.0",
        _of("hiyouga/LLaMA-Factory", "data/oaast_sft_zh.json"),
    ),
    TraceFile(
        "text/mt_bench_questions.jsonl", "mt_bench_questions", "Apache-2.0",
        _of("lm-sys/FastChat", "fastchat/llm_judge/data/mt_bench/question.jsonl"),
    ),
    TraceFile(
        "text/mt_bench_101.jsonl.gz", "mt_bench_101", "Apache-2.0",
        _of("mtbench101/mt-bench-101", "data/subjective/mtbench101.jsonl"),
    ),
    TraceFile(
        "text/arena_hard_v01.jsonl.gz", "arena_hard_v01", "Apache-2.0",
        _of("lmarena/arena-hard-auto", "data/arena-hard-v0.1"),
    ),
    TraceFile(
        "text/glaive_toolcall_en_300.jsonl.gz", "glaive_toolcall_en_300", "Apache-2.0",
        _of("hiyouga/LLaMA-Factory", "data/glaive_toolcall_en_demo.json"),
    ),
    TraceFile(
        "text/sharegpt_turn_lengths_300.csv",
        "sharegpt-like, sharegpt-busy", "MIT",
        _of("casys-kaist/LLMServingSim", "workloads/sharegpt-llama-3.1-8b-300-sps10.jsonl"),
        cut="lengths only",
    ),
    TraceFile(
        "human_speeds.csv", "", "facts", "papers named in it", why="speeds of all profiles' people",
    ),
)  # fmt: skip

# Public ones that are no files of ours, with why.
NOT_HERE = {
    "Mooncake, tool and agent trace, full arXiv trace": _of("kvcache-ai/Mooncake"),
    "BurstGPT, all of it": f"{_of('HPMLL/BurstGPT')} (too large to keep)",
    "Azure Functions 2019 and 2021, all of it": _of("Azure/AzurePublicDataset"),
    "Azure LLM 2024": f"on Azure's storage, linked from {_of('Azure/AzurePublicDataset')}",
    "Qwen-Bailian": "Git LFS only",
    "ShareGPT's text, Alpaca, LMSYS-Chat-1M": "left out: their licences",
}
