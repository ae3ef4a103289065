"""Mutants of the shells: lost wake-ups, missed reconnects, wrong timeouts, swallowed errors."""

from loadtest.world.mutant import Mutant

EVENTS = "shared/runtime/events.py"
CONNECTION = "shared/bus/connection.py"
ASKING = "shared/bus/asking.py"
SERVING = "shared/bus/serving.py"
LEASE = "shared/lease/lease.py"
CONSUME = "services/scheduler/consume.py"
LEADERSHIP = "services/scheduler/leadership.py"
SCHEDULER = "services/scheduler/service.py"
JOBS = "services/scheduler/job_service.py"
TRACKER = "services/tracker/service.py"
RUNNER = "services/worker/runner.py"
WORKER_OUTBOX = "services/worker/outbox.py"
STEP_LOOP = "services/worker/step_loop.py"
KV_CLIENT = "services/worker/kv_client.py"
PROMPTS = "services/worker/prompts.py"
KVSTORE = "services/kvstore/service.py"
PERFORMER = "services/kvstore/performer.py"
KV_WRITER = "services/kvstore/tiers/disk/disk_writer.py"
KV_LOADER = "services/kvstore/tiers/disk/loader.py"
KV_PEERING = "services/kvstore/peers/peering.py"
KV_OBJECTS = "services/kvstore/tiers/objects/link.py"
KV_INDEX = "services/kvstore/index/redis_index.py"
KV_REDIS = "services/kvstore/index/redis_link.py"
HUB = "services/frontend/turns/hub.py"
JOB_HUB = "services/frontend/turns/job_hub.py"
OUTBOX = "services/frontend/turns/outbox.py"
SESSIONS = "services/frontend/sessions/store.py"
HINT_GATE = "services/frontend/turns/hints.py"
GENERATION = "services/frontend/api/text/generation.py"
HTTP_REQUEST = "services/frontend/http/request.py"
ANSWERS = "services/frontend/http/answers.py"

SHELL_MUTANTS = (
    # What every shell stands on.
    Mutant(
        "an alarm that finds the queue full is lost", EVENTS,
        "        if not self.put(self._on_wake):",
        "        self.put(self._on_wake)\n        if False:",
    ),
    Mutant(
        "alarms ring ten times as late", EVENTS,
        "call_later(delay_ms / 1e3, self._wake)", "call_later(delay_ms / 1e2, self._wake)",
    ),
    Mutant(
        "a core's refusal ends its loop", EVENTS,
        "            except SymphonyError as error:\n                answer.set_exception(error)\n"
        "                return []\n",
        "            except KeyError:\n                return []\n",
    ),
    Mutant(
        "a connection that came back never counts as steady", CONNECTION,
        "        self._back_at_s = asyncio.get_running_loop().time()\n", "",
    ),
    Mutant(
        "nothing hears that the connection broke", CONNECTION,
        "        for callback in self._on_disconnect:\n            callback()\n", "",
    ),
    Mutant(
        "who does not answer counts as there", ASKING,
        "        except (TimeoutError, NatsError):\n            return False\n",
        "        except (TimeoutError, NatsError):\n            return True\n",
    ),
    Mutant(
        "a message that cannot be read ends the service", SERVING,
        "            except MalformedMessage as error:\n                MALFORMED",
        "            except MalformedMessage as error:\n"
        "                asyncio.get_running_loop().call_exception_handler(\n"
        '                    {"message": "malformed", "exception": error}\n'
        "                )\n                MALFORMED",
    ),
    Mutant(
        "a served subject never frees its slots", SERVING,
        "            finally:\n                slots.release()\n", "",
    ),
    # The lease.
    Mutant(
        "a lease whose store does not answer waits for ever", LEASE,
        "            entry = await bucket.get(self._key)\n        except PeerUnavailable:\n"
        "            await self._events.put_surely(self._core.on_no_answer)\n",
        "            entry = await bucket.get(self._key)\n        except PeerUnavailable:\n"
        "            pass\n",
    ),
    Mutant(
        "a lease that another took is not noticed", LEASE,
        "        except RevisionConflict:\n"
        "            await self._events.put_surely(self._core.on_conflict)\n",
        "        except RevisionConflict:\n            pass\n",
    ),
    Mutant(
        "an answer of the holder that cannot be read ends the spare", LEASE,
        "        except SymphonyError:  # or an answer that cannot be decoded\n",
        "        except PeerUnavailable:\n",
    ),
    Mutant(
        "who lost the lease stays", LEASE,
        "                self._on_lost()\n", "                pass\n",
    ),
    Mutant(
        "a cut connection leaves the leader leading", LEASE,
        "        is_cut = self._num_cuts > 0 or not self._runtime.bus.connected\n",
        "        is_cut = False\n",
    ),
    # The scheduler.
    Mutant(
        "it acts without leading", LEADERSHIP,
        "        while not self._lease.is_leading:  # noqa: ASYNC110\n", "        while False:\n",
    ),
    Mutant(
        "a higher fence is not followed", SCHEDULER,
        "        leadership.on_fence(self._core.set_fence)\n", "",
    ),
    Mutant(
        "a silent worker is never given up", CONSUME,
        "    if not is_there and RETURN_S <= was_steady_s <= bus.steady_for_s:\n",
        "    if False:\n",
    ),
    Mutant(
        "a worker is given up while the bus is away", CONSUME,
        "    if not is_there and RETURN_S <= was_steady_s <= bus.steady_for_s:\n",
        "    if not is_there:\n",
    ),
    Mutant(
        "a probe waits for two milliseconds", CONSUME,
        "SILENT_S = 2.0\n", "SILENT_S = 0.002\n",
    ),
    Mutant(
        "shards do not hear what the others place", SCHEDULER,
        "        await self._bus.subscribe(TURNS_PLACED, self._feed(core.on_turns_placed))\n", "",
    ),
    Mutant(
        "a new leader is not announced", JOBS,
        "    await leadership.announce()\n", "",
    ),
    Mutant(
        "batches that ended are not heard of", JOBS,
        "    await bus.subscribe(BATCH_DONE, shell.feed(core.on_batch_done))\n"
        "    await bus.subscribe(JOBS_SUBMIT",
        "    await bus.subscribe(JOBS_SUBMIT",
    ),
    # The tracker.
    Mutant(
        "a placement is waited for too short a time", TRACKER,
        "PLACEMENT_TIMEOUT_S = 2.0\n", "PLACEMENT_TIMEOUT_S = 0.0001\n",
    ),
    Mutant(
        "a placement that failed is not passed to the core", TRACKER,
        '            log.warning("no placement", extra',
        '            return\n            log.warning("no placement", extra',
    ),
    Mutant(
        "a drop that fails ends the tracker", TRACKER,
        "key, shard, timeout_s=PLACEMENT_TIMEOUT_S)\n        except SymphonyError as error:",
        "key, shard, timeout_s=PLACEMENT_TIMEOUT_S)\n        except KeyError as error:",
    ),
    # The worker.
    Mutant(
        "the end of a step wakes nothing", STEP_LOOP,
        "        work.add_done_callback(self._on_done)\n", "",
    ),
    Mutant(
        "an event does not wake the step loop", RUNNER,
        "        self._perform(effects)\n        self._steps.wake()\n",
        "        self._perform(effects)\n",
    ),
    Mutant(
        "a step counts as stuck after a millisecond", STEP_LOOP,
        "limit_ns = self._core.step_limit_ns(plan)", "limit_ns = 1_000_000",
    ),
    Mutant(
        "a step that does not end is waited for", STEP_LOOP,
        '            self._on_stuck(f"a step', '            str(f"a step',
    ),
    Mutant(
        "a kvstore that is not there ends the worker", KV_CLIENT,
        "            except (SymphonyError, OSError) as error:\n                if not has_warned",
        "            except OSError as error:\n                if not has_warned",
    ),
    Mutant(
        "only the first ends of turns are sent", WORKER_OUTBOX,
        "        self._is_sending_ends = False\n        ends, self._ends",
        "        ends, self._ends",
    ),
    Mutant(
        "a prompt that did not come is never answered", PROMPTS,
        "            log.warning(\"no prompt\", extra=",
        "            return\n            log.warning(\"no prompt\", extra=",
    ),
    Mutant(
        "a prompt is waited for one millisecond", PROMPTS,
        "PULL_TIMEOUT_S = 5.0\n", "PULL_TIMEOUT_S = 0.001\n",
    ),
    # The frontend.
    Mutant(
        "tokens do not wake the request that waits for them", HUB,
        "                return\n        self._wake()\n", "                return\n",
    ),
    Mutant(
        "silent turns are not looked at", HUB,
        "            self._perform(self._turns.on_tick(self._clock.now_ns()))\n",
        "            pass\n",
    ),
    Mutant(
        "a message that cannot be published ends the outbox", OUTBOX,
        "            except (PeerUnavailable, ValueError) as error:\n",
        "            except ValueError as error:\n",
    ),
    Mutant(
        "jobs wake up ten times as late", JOB_HUB,
        "delay_s = max(at_ns - self._clock.now_ns(), 0) / 1e9",
        "delay_s = max(at_ns - self._clock.now_ns(), 0) / 1e8",
    ),
    Mutant(
        "a Redis that refuses connections fails requests", SESSIONS,
        "        except (RedisError, OSError, TimeoutError) as error:\n",
        "        except (OSError, TimeoutError) as error:\n",
    ),
    Mutant(
        "a Redis that does not answer is waited for", SESSIONS,
        "PATIENCE_S = 0.25\n", "PATIENCE_S = 25.0\n",
    ),
    Mutant(
        "outcomes of advisories are not listened for", HINT_GATE,
        "        await self._bus.subscribe(HINTS_ENDED, self._accounts.on_ended, self.frontend_id)"
        "\n",
        "        pass\n",
    ),
    Mutant(
        "a generation keeps its slots", GENERATION,
        "        self._taken.close()\n", "",
    ),
    Mutant(
        "a hang-up cancels nothing", HTTP_REQUEST,
        "            pass\n        on_disconnect()\n", "            pass\n",
    ),
    Mutant(
        "a hang-up during a stream cancels nothing", ANSWERS,
        "watched(receive, self._on_disconnect)", "watched(receive, lambda: None)",
    ),
    # The kvstore.
    Mutant(
        "lease files are not polled", KVSTORE,
        "            for worker_id, incarnation in self._leases.poll():\n",
        "            for worker_id, incarnation in ():\n",
    ),
    Mutant(
        "a Redis that fails once is never asked again", KV_INDEX,
        "                self._presence.on_failed(error)\n"
        "                await asyncio.sleep(CHECK_INTERVAL_S)\n                continue\n",
        "                self._presence.on_failed(error)\n                return\n",
    ),
    Mutant(
        "Redis is waited for too short a time", KV_REDIS,
        "TIMEOUT_S = 1.0\n", "TIMEOUT_S = 0.0001\n",
    ),
    Mutant(
        "an object store that is away at the start ends the service", KV_OBJECTS,
        "            except StoreFailed as error:\n"
        '                log.warning("the object store is away"',
        "            except KeyError as error:\n"
        '                log.warning("the object store is away"',
    ),
    Mutant(
        "a report of the writer is lost", KV_WRITER,
        "                self._report(results)\n",
        "                self._report(results[1:] or results)\n",
    ),
    Mutant(
        "what the disk refused counts as stored", KV_WRITER,
        "            return WriteOutcome.FULL if isinstance(error, DiskFull) "
        "else WriteOutcome.FAILED\n",
        "            return WriteOutcome.STORED\n",
    ),
    Mutant(
        "pages whose read failed stay promised", KV_LOADER,
        "        self._publish(begun, LoadOutcome.FAILED)\n", "",
    ),
    Mutant(
        "what a link brought that was replaced is not reported", KV_PEERING,
        "        self._events.fetched(host_id, pages, int(seconds * 1e9), is_current)\n",
        "        if is_current:\n"
        "            self._events.fetched(host_id, pages, int(seconds * 1e9), is_current)\n",
    ),
    Mutant(
        "a kvstore that stops writes nothing down", PERFORMER,
        "        self.perform(self._core.on_stop())\n", "",
    ),
    Mutant(
        "an arena's growth is not reported", PERFORMER,
        "        ports.memory.on_grown = self._from_thread(core.on_arena_grown)\n", "",
    ),
)  # fmt: skip
