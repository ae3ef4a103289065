"""Mutants of the pure cores."""

from loadtest.world.mutant import Mutant

FRONTEND_TURNS = "services/frontend/core/turns/turns.py"
FRONTEND_JOBS = "services/frontend/core/turns/jobs.py"
SCHEDULER_TURNS = "services/scheduler/core/turns/turns.py"
SCHEDULER_BOARD = "services/scheduler/core/turns/turn_table.py"
OTHERS = "services/scheduler/core/turns/peer_turns.py"
TRIALS = "services/scheduler/core/turns/quarantine.py"
SCHEDULER = "services/scheduler/core/turns/core.py"
RESERVATIONS = "services/scheduler/core/turns/reservations.py"
LEASE = "shared/lease/core/core.py"
JOBS = "services/scheduler/core/jobs/core.py"
TRACKER = "services/tracker/core/tracker.py"
FOLLOWER = "services/tracker/core/agents/follower.py"
TRACKER_SHARDS = "services/tracker/core/shards.py"
ENGINE = "services/worker/core/engine/engine.py"
LANDING = "services/worker/core/engine/landing.py"
TURN = "services/worker/core/turns/turn.py"
HISTORY = "services/worker/core/turns/history.py"
TAILS = "services/worker/core/turns/tails.py"
ROWS = "services/worker/core/engine/rows.py"
PAGES = "services/worker/core/kv/pages.py"
RESIDENCY = "services/worker/core/kv/residency.py"
STAGING = "services/worker/core/kv/staging.py"
WRITEBACK = "services/worker/core/kv/write_behind.py"
LINK = "services/worker/core/kv/kv_link.py"
PULLING = "services/worker/core/pulling.py"
BATCHES = "services/worker/oneshot/core.py"
STORE = "services/kvstore/core/store.py"
KV_CALLS = "services/kvstore/core/worker_calls.py"
EXCHANGE = "services/kvstore/core/exchange.py"
ARENA = "services/kvstore/core/tiers/arena_tier.py"
ARENA_BLOCK = "services/kvstore/core/tiers/arena_block.py"
LOADS = "services/kvstore/core/loading/loads.py"
LOCATIONS = "services/kvstore/core/tiers/locations.py"
OBJECTS = "services/kvstore/core/writing/objects.py"
OBJECT_TIER = "services/kvstore/core/tiers/object_tier.py"
BLOCKS = "shared/blocks.py"
ADAPTERS = "services/worker/core/adapters/adapters.py"
IMAGE_LOADING = "services/worker/core/adapters/loading.py"
INTAKE = "services/worker/core/turns/intake.py"

CORE_MUTANTS = (
    # Turns, at the frontend.
    Mutant(
        "a gap is not voided", FRONTEND_TURNS,
        "if delta.index > num_known or delta.finish", "if delta.finish",
    ),
    Mutant(
        "attempts are not fenced", FRONTEND_TURNS,
        "turn is None or delta.attempt < turn.attempt", "turn is None",
    ),
    Mutant(
        "an attempt that had its prompt is not taken", FRONTEND_TURNS,
        'if not turn.is_sent_along or delta.finish == "cancelled":', "if True:",
    ),
    Mutant(
        "an old attempt may pull", FRONTEND_TURNS,
        "if turn is not None and (pull.is_ahead or ref.attempt >= turn.attempt):",
        "if turn is not None:",
    ),
    Mutant(
        "a repeat is not cut off", FRONTEND_TURNS,
        "num_repeated = num_known - delta.index\n        said = turn.generated[delta.index :]",
        "num_repeated = 0\n        said = []",
    ),
    Mutant(
        "a pull forgets what was generated", FRONTEND_TURNS,
        "tokens=pack_ints([*turn.new.prompt, *turn.generated])",
        "tokens=pack_ints([*turn.new.prompt])",
    ),
    Mutant(
        "silence is not followed by a new submit", FRONTEND_TURNS,
        "elif now_ns - max(turn.news_at_ns, turn.submitted_at_ns) >= silence_ns:", "elif False:",
    ),
    # Turns, at the scheduler.
    Mutant(
        "every turn fails", SCHEDULER_TURNS,
        "        if len(self._table) >= self._limits.turns_max:", "        if True:",
    ),
    Mutant(
        "a scheduler takes others' turns for its own", SCHEDULER_TURNS,
        "            if self._share.has_turn(ref.turn_id):\n", "            if True:\n",
    ),
    Mutant(
        "others' turns that are over stay", OTHERS,
        "        worker = self._where.pop(turn_id, None)", "        worker = None",
    ),
    Mutant(
        "a suspect does not wait for others' turns", TRIALS,
        "        if worker.peer_turns:\n            self._peer_turns.claim(worker, now_ns)",
        "        if False:\n            self._peer_turns.claim(worker, now_ns)",
    ),
    Mutant(
        "a lost turn is never placed again", SCHEDULER_TURNS,
        "            self._place(turn, now_ns, avoid=worker)",
        "            self._table.close(turn)",
    ),
    Mutant(
        "attempts do not grow", SCHEDULER_BOARD,
        "turn.attempt = max(turn.attempt + 1, self._attempt_floor)",
        "turn.attempt = max(turn.attempt, self._attempt_floor)",
    ),
    Mutant(
        "ended turns are not closed", SCHEDULER_TURNS,
        "if turn is not None and end.attempt >= turn.attempt:",
        "if turn is not None and end.attempt > turn.attempt:",
    ),
    Mutant(
        "reports do not tell what is missing", SCHEDULER_TURNS,
        "            if report.seq >= turn.seen_seq + REPORTS_TO_BE_MISSED",
        "            if False and report.seq >= turn.seen_seq + REPORTS_TO_BE_MISSED",
    ),
    Mutant(
        "a dead worker keeps its turns", SCHEDULER,
        "        self._turns.worker_silent(worker, now_ns)\n", "",
    ),
    Mutant(
        "waiting turns are not placed when a worker comes", SCHEDULER,
        "            self._turns.admit(change.opened, now_ns)\n", "",
    ),
    Mutant(
        "reservations do not expire", RESERVATIONS,
        "            if held.expires_at_ns <= now_ns:\n                self._release(held)",
        "            if held.expires_at_ns <= now_ns:\n                pass",
    ),
    Mutant(
        "a dead worker keeps its reservations", SCHEDULER,
        "        self._reservations.move_off(worker, now_ns)\n        self._watch(worker, now_ns)",
        "        self._watch(worker, now_ns)",
    ),
    Mutant(
        "silence counts while nobody listens", SCHEDULER,
        "        if self._timers.is_standstill(now_ns):", "        if False:",
    ),
    # The lease.
    Mutant(
        "the fence does not grow", LEASE,
        "self._fence_floor = max(self._fence_floor, stored.lease.fence + 1)",
        "self._fence_floor = max(self._fence_floor, stored.lease.fence)",
    ),
    Mutant(
        "a holder believes for too long", LEASE,
        "self._believed_until_ns = self._asked_at_ns + self._times.patience_ns",
        "self._believed_until_ns = now_ns + 4 * self._times.ttl_ns",
    ),
    # Jobs.
    Mutant(
        "what one batch missed is never submitted again", FRONTEND_JOBS,
        "            self._check_at(group, again_at_ns)\n", "",
    ),
    Mutant(
        "a job's second result counts too", FRONTEND_JOBS,
        "            del self._of_job[result.job_id]\n", "",
    ),
    Mutant(
        "a done batch stays open", JOBS,
        "            self._account(batch, done, now_ns)\n", "            pass\n",
    ),
    Mutant(
        "batches on a machine that is gone for good stay there", JOBS,
        "            self._orders.on_gone(device)\n            self._take_off(device, now_ns)\n"
        "        return self._take_effects",
        "            self._orders.on_gone(device)\n        return self._take_effects",
    ),
    # Advisories.
    Mutant(
        "the tracker never asks", TRACKER,
        "        self._out.append(Expect(record.ask(now_ns)))", "        record.ask(now_ns)",
    ),
    Mutant(
        "an advisory outlives its time", TRACKER,
        "        else:\n            due_at_ns = record.expires_at_ns\n",
        "        else:\n            due_at_ns = record.expires_at_ns + 3_600_000_000_000\n",
    ),
    Mutant(
        "a spare tracker acts", TRACKER,
        "            self._unannounced.add(followed.foreseen, now_ns)\n            return []\n", "",
    ),
    Mutant(
        "a shard expects what is another's", TRACKER_SHARDS,
        "            if shard is None or each.is_handed_on or each.prefix is not None:",
        "            if True:",
    ),
    Mutant(
        "a session that nobody knows yet is handed on", TRACKER_SHARDS,
        "each.is_handed_on or each.prefix is not None:", "each.is_handed_on:",
    ),
    Mutant(
        "a spare acts on what another shard foresees", TRACKER,
        "        foreseen = handed_on(message)\n        if self._is_spare:",
        "        foreseen = handed_on(message)\n        if False:",
    ),
    # Agents.
    Mutant(
        "workflows of all tenants are one", FOLLOWER,
        "        key = (tenant, workflow_id)\n", '        key = (TenantId(""), workflow_id)\n',
    ),
    Mutant(
        "a workflow is followed for ever", FOLLOWER,
        "                self._forget_workflow()\n", "                pass\n",
    ),
    Mutant(
        "agents of all tenants begin alike", "services/tracker/core/agent_turns.py",
        "    return tenant, agent\n", '    return TenantId(""), agent\n',
    ),
    # Hints.
    Mutant(
        "a turn proves later advisories wrong", "services/tracker/core/order.py",
        "max(number, self._came.get(record.origin.sender, 0))", "self._num_sent + 1",
    ),
    Mutant(
        "what a client announces stays the tracker's own", TRACKER,
        "            self._live_limits.num_foreseen -= record.origin.is_own and foreseen is None\n",
        "",
    ),
    Mutant(
        "no frontend is told what became of advisories", TRACKER,
        "        self._out += [SendVerdicts(*verdicts) for verdicts in self._verdicts.due(now_ns)]",
        "        self._verdicts.due(now_ns)",
    ),
    Mutant(
        "a hint of one tenant is taken for another's session", TRACKER,
        "        record = self._live.get(key)\n"
        "        if record is None:\n            self._live_limits.check",
        "        record = next((r for k, r in self._live.items() if k[1] == key[1]), None)\n"
        "        if record is None:\n            self._live_limits.check",
    ),
    Mutant(
        "a place of one tenant is told to another's session", RESERVATIONS,
        "        held = self._held.get(key)\n"
        "        if held is not None and held.model_id == model_id:",
        "        held = next((h for k, h in self._held.items() if k[1] == key[1]), None)\n"
        "        if held is not None and held.model_id == model_id:",
    ),
    Mutant(
        "what is announced for tomorrow is brought up today",
        "services/worker/core/engine/announcements.py",
        "        if at_ns > now_ns:", "        if False:",
    ),
    Mutant(
        "whoever is throttled stays so", "shared/wire/hint_accounts.py",
        "        self._gain(account, passed_s * self.per_s)", "        pass",
    ),
    # The engine.
    Mutant(
        "a staged ticket is never released", STAGING,
        "        return [ReleaseTicket(ticket)]\n\n    def load(",
        "        return []\n\n    def load(",
    ),
    Mutant(
        "an answer that comes too late keeps its ticket", RESIDENCY,
        "            return [] if staged is None else [ReleaseTicket(staged.ticket)]",
        "            return []",
    ),
    Mutant(
        "an answer for a turn that is gone keeps its ticket", ENGINE,
        "            return [] if staged is None else [ReleaseTicket(staged.ticket)]",
        "            return []",
    ),
    Mutant(
        "who waited for too long tells the others late", LANDING,
        "if index in result.failed:  # noted at once", "if False:  # noted at once",
    ),
    Mutant(
        "loading blocks are not lost", RESIDENCY,
        "            if block.loading:\n                block.lost = True",
        "            if block.loading:\n                pass",
    ),
    Mutant(
        "a loading twin is adopted", HISTORY,
        "elif twin.loading or not pool.is_whole(twin):",
        "elif not pool.is_whole(twin):",
    ),
    Mutant(
        "a failed row counts as computed", LANDING,
        "if why_broken is not None or index in result.failed:", "if why_broken is not None:",
    ),
    Mutant(
        "a turn is ended while it runs", LANDING,
        "        if not turn.num_flights:\n            return self._let_go",
        "        if True:\n            return self._let_go",
    ),
    Mutant(
        "a failed turn starts again while it runs", ENGINE,
        "            if not turn.num_flights:\n                effects += self.landing.settle",
        "            if True:\n                effects += self.landing.settle",
    ),
    Mutant(
        "a block is given back while a step in flight reads it",
        "services/worker/core/engine/steps_in_flight.py",
        "            self.flights[-1].retired += blocks", "            self.pool.give_back(blocks)",
    ),
    Mutant(
        "a bad load is good enough", STAGING,
        "                flight.block.lost = True\n", "                pass\n",
    ),
    Mutant(
        "pages of a running turn are taken", PAGES,
        "            if block.refs or block.loading:", "            if block.loading:",
    ),
    Mutant(
        "private pages are not given back", HISTORY,
        "        self.residency.pool.give_back(turn.cache.own)\n", "",
    ),
    Mutant(
        "a stage is adopted though what it stands on is gone", RESIDENCY,
        "        keys = staged.keys[first:] if first >= 0 else []",
        "        keys = staged.keys[first:]",
    ),
    Mutant(
        "a remnant counts as whole", RESIDENCY,
        "if block is None or block.lost or not pool.is_whole(block):\n                break",
        "if block is None or block.lost:\n                break",
    ),
    Mutant(
        "leases outlive their connection", WRITEBACK,
        "        self._stock.clear()\n", "",
    ),
    Mutant(
        "writes outlive their connection", WRITEBACK,
        "        self._storing.clear()\n", "",
    ),
    Mutant(
        "an arena is taken for the one before it", LINK,
        "        self.epoch += 1\n", "        self.epoch = 1\n",
    ),
    Mutant(
        "failed calls do not end the connection", LINK,
        "        self.is_open = False\n        return True", "        return False",
    ),
    Mutant(
        "cancelled pulls are delivered", PULLING,
        "            if self._is_wanted(start) and (",
        "            if self._pulling.setdefault(start.turn_id, start) and (",
    ),
    # The kvstore.
    Mutant(
        "a dead worker's tickets stay", KV_CALLS,
        "                self._tiers.unpin(ticket, now_ns, effects)\n            for page_bytes",
        "                pass\n            for page_bytes",
    ),
    Mutant(
        "a reopened worker keeps what it held", KV_CALLS,
        "            effects += self.on_worker_gone(old.worker_id, old.incarnation, now_ns)\n",
        "            self._workers.close(old.worker_id, old.incarnation)\n",
    ),
    Mutant(
        "tickets do not expire", STORE,
        "        for ticket in self.workers.take_expired(now_ns - self._limits.ticket_ns):",
        "        for ticket in self.workers.take_expired(-1):",
    ),
    Mutant(
        "forgotten leases stay", KV_CALLS,
        "if pages := worker.take_forgotten(event, now_ns - self._limits.ticket_ns):",
        "if pages := worker.take_forgotten(event, -1):",
    ),
    Mutant(
        "the only copy is evicted", ARENA_BLOCK,
        "return not (self.num_pins or self.is_writing or self.queued or self.in_flight)",
        "return not (self.num_pins or self.queued or self.in_flight)",
    ),
    Mutant(
        "pinned pages are evicted", ARENA_BLOCK,
        "return not (self.num_pins or self.is_writing or self.queued or self.in_flight)",
        "return not (self.is_writing or self.queued or self.in_flight)",
    ),
    Mutant(
        "generations do not grow", ARENA,
        "            self._generations[page] += 1\n", "            pass\n",
    ),
    Mutant(
        "an arena that grows gives a page twice", ARENA,
        "        self._free += range(num_pages - 1, self.num_pages - 1, -1)\n",
        "        self._free += range(num_pages - 1, self.num_pages - 2, -1)\n",
    ),
    Mutant(
        "a damaged block is kept", LOADS,
        "            if block.is_alive:\n                self._tiers.forget",
        "            if False:\n                self._tiers.forget",
    ),
    Mutant(
        "a Redis that lost everything is told what is new", LOCATIONS,
        "        before = self._claim(self._life) if self._is_claimed else None\n",
        "        before = None\n",
    ),
    Mutant(
        "locations on a lost disk stay", STORE, "        self.locations.on_lost()\n", "",
    ),
    # How long KV is kept.
    Mutant(
        "what is expired stays on disk", "services/kvstore/core/disk/use_order.py",
        "                if not is_expired(row):\n", "                if True:\n",
    ),
    Mutant(
        "what is left to let go of is forgotten", "services/kvstore/core/tiers/shrinking.py",
        "            self._steps.ask(effects)\n", "            pass\n",
    ),
    Mutant(
        "a restart forgets whose blocks are on disk", "services/kvstore/core/disk/disk_tier.py",
        "        self._owned.fill(found.owners)\n",
        "        self._owned.fill(bytes(len(found.owners)))\n",
    ),
    Mutant(
        "a session has two expiries", "services/kvstore/core/writing/storing.py",
        "                self.set_expiry(block.owner, expiry_s, now_ns, effects)\n",
        "                pass\n",
    ),
    Mutant(
        "what is expired stays in the object store", OBJECT_TIER,
        "        self._deadlines.put(run.owner, self._expires_at_ns(saved))\n", "",
    ),
    # The object store.
    Mutant(
        "a run that left for room is written again", OBJECTS,
        "                self._saving.on_dropped(run)\n",
        "                self._saving.on_gone(run)\n",
    ),
    Mutant(
        "what leaves the object store still counts", OBJECT_TIER,
        "        self.num_bytes -= num_bytes\n", "",
    ),
    Mutant(
        "the disk waits for the object store", LOADS,
        "while source.num_batches < self._limits.load_batches_max:",
        "while sum(each.num_batches for each in self._queues) < self._limits.load_batches_max:",
    ),
    Mutant(
        "new KV waits for the object store", LOADS,
        "for each in self._queues if each.host_id != OBJECTS)", "for each in self._queues)",
    ),
    # Hosts.
    Mutant(
        "what a peer will not bring is waited for", EXCHANGE,
        "                self._arenas[block.page_bytes].abandon(block, effects)\n",
        "                pass\n",
    ),
    Mutant(
        "what came from a peer is evicted while it is written", ARENA,
        "        block.is_writing = True\n        self.idle.discard(block)\n",
        "        block.is_writing = True\n",
    ),
    # Keys.
    Mutant(
        "root keys without tenant", BLOCKS,
        "for part in (fingerprint, tenant, adapter_hash, salt):",
        "for part in (fingerprint, adapter_hash, salt):",
    ),
    Mutant(
        "KV of two forms has one key", BLOCKS,
        "for part in (fingerprint, tenant, adapter_hash, salt):",
        "for part in (tenant, adapter_hash, salt):",
    ),
    Mutant(
        "weights of an adapter are rounded", IMAGE_LOADING,
        "        if not self.is_stored:\n            return\n", "",
    ),
    Mutant(
        "keys do not cover what is before", BLOCKS,
        "blake2b(array(\"i\", tokens).tobytes(), key=parent, digest_size=KEY_BYTES)",
        "blake2b(array(\"i\", tokens).tobytes(), digest_size=KEY_BYTES)",
    ),
    Mutant(
        "KV of one adapter serves turns of others", INTAKE,
        'adapter_hash = start.adapter.adapter_hash if start.adapter is not None else ""',
        'adapter_hash = ""',
    ),
    Mutant(
        "a turn starts before its adapter is there", ADAPTERS,
        "if chain.is_asked:\n            return Readiness.COMING\n        if chain.coming:",
        "if chain.is_asked:\n            return Readiness.COMING\n        if False:",
    ),
    Mutant(
        "a pass does not know what of an adapter is on its way", ROWS,
        "streams=streams,", "streams={},",
    ),
    Mutant(
        "a pass waits again for what was late", RESIDENCY,
        "            block.is_late = block.loading > 0", "            pass",
    ),
    Mutant(
        "an adapter's new line is not told", ADAPTERS,
        "image.line, image.is_reported = self._lines.pop(), False",
        "image.line = self._lines.pop()",
    ),
    Mutant(
        "an adapter is let go while others run on it", ADAPTERS,
        "        if image.users:\n            return []\n",
        "",
    ),
    Mutant(
        "an adapter's answer is waited for beyond its time", ENGINE,
        "        self.adapters.on_time(now_ns)\n",
        "",
    ),
    Mutant(
        "what an adapter's last try left fails the next", ADAPTERS,
        "if image.num_failures and self.loading.has_remains(image):",
        "if False:",
    ),
    Mutant(
        "a scheduler forgets the adapter of what it places again", "shared/wire/messages/turns.py",
        "        adapter=submit.adapter,\n",
        "",
    ),
    Mutant(
        "a trimmed ticket still holds what was let go", "services/kvstore/core/tiers/workers.py",
        "        del self.blocks[num_kept:]\n",
        "",
    ),
    Mutant(
        "what a void step planned counts as computed", TURN,
        "        self.num_planned = self.num_computed\n\n",
        "        self.num_computed = self.num_planned\n\n",
    ),
    Mutant(
        "history that is overdue is waited for", "services/worker/core/turns/history.py",
        "if not 0 < prefix.give_up_at_ns <= now_ns:",
        "if True:",
    ),
    # The last, partial block of a session.
    Mutant(
        "a tail that changes is found", TAILS,
        "            self.residency.forget([turn.cache.tail])\n", "",
    ),
    Mutant(
        "two turns of a session go on in one tail", TAILS,
        "        if tail is None or tail.refs == 1:\n            return\n"
        "        prefix.blocks.pop()",
        "        if True:\n            return\n        prefix.blocks.pop()",
    ),
    Mutant(
        "a copy of a tail is told though its turn goes on in it", TAILS,
        "            self.write_behind.forget([turn.cache.tail])\n", "",
    ),
    Mutant(
        "a tail's key names a token that has no KV", HISTORY,
        "tokens = turn.tokens[num_tokens - num_more : num_tokens]",
        "tokens = turn.tokens[num_tokens - num_more : num_tokens + 1]",
    ),
    Mutant(
        "a turn goes on behind a token that its tail has not", TURN,
        "            return min(cache.num_history, self.num_reusable)\n",
        "            return min(cache.num_history + 1, self.num_reusable)\n",
    ),
    # Placement.
    Mutant(
        "a turn does not count what was loaded for it", HISTORY,
        "        effects = self.residency.load(turn.cache.prefix)\n        turn.on_prefix()\n",
        "        effects = self.residency.load(turn.cache.prefix)\n",
    ),
    Mutant(
        "a place that is told of again is expected twice", RESERVATIONS,
        "        worker.expected.remove(held.arrives_at_ns)\n", "",
    ),
    Mutant(
        "a paused turn keeps its row in the step", "services/worker/core/engine/planner.py",
        "        draft.rows = [row for row in draft.rows if row.turn not in victims]\n", "",
    ),
    Mutant(
        "urgent turns are never over", SCHEDULER_BOARD,
        "        worker.num_urgent -= turn.is_urgent\n", "",
    ),
    Mutant(
        "a place that is far stays an urgent one", RESERVATIONS,
        "        held.worker.num_urgent -= held.is_urgent\n        held.is_far = is_far\n",
        "        held.is_far = is_far\n",
    ),
    Mutant(
        "a tail on its way becomes a turn's own", TAILS,
        "if tail.loading or tail.lost:", "if False:",
    ),
)  # fmt: skip
