/* Corrupt words that clients can write, one after the other, between the passes of a clock.
 *
 *   own   one hostile worker: its segment, its slots, the owner words of its slabs. The account
 *         of the others stays exact, also over deaths of the clock and the hostile
 *         worker's reaping.
 *   all   everything that any client can write. The clock does not crash, does not hang, and its
 *         wheel holds, also after recovery; there is no account to be kept.
 *
 *   keys  the directory of keys, and which timer a worker was replacing. Workers go on claiming,
 *         moving, cancelling and looking up timers by key, and die: nobody crashes, hangs, or reads
 *         beyond the segment, which stands between pages that nobody may touch.
 *
 * Every other episode is traced. Bit flips, copies of other words, and garbage that means something
 * to somebody. One thread, virtual time: a seed is exact. */
#include "paths.h"
#include "rounds.h"

enum {
    EPISODE = 2500,
    BATCH = 24,
    MOST_PASSES = 300,
    HOSTILE_SLABS = 2,
    SOME_KEYS = 40,
    GUARD = 64 << 20,
    MOST_DIRECTORY = 4 << 20
};

#define H (&S->workers[0]) /* the hostile one */

static uint64_t done; /* corruptions in this run of a path */
static uint32_t slabs[HOSTILE_SLABS];

/* -- words ------------------------------------------------------------------------------------- */

static uint64_t garbage(void)
{
    static const uint64_t odd[] = {
        0,          1,          2,          UINT64_MAX, 1ull << 63,       INT64_MAX,
        1ull << 32, 0xffffffff, 1ull << 30, 1ull << 48, (1ull << 48) - 1, (1ull << 63) + 5};
    uint64_t r = rng_next(&S->rng), slot = (r & 0xffff) % (S->config.capacity + 2);
    switch (dice(7)) {
    case 0:
        return odd[r % (sizeof odd / sizeof *odd)];
    case 1: /* an id: any slot, one past the last too, any kind, a likely generation */
        return wh_id((uint32_t)(r >> 40) % 6, (uint32_t)slot) | (r >> 32 & 3) << WH_ID_KIND_AT;
    case 2:
        return wh_state((uint32_t)(r >> 40) % 6, (uint32_t)(r >> 8) % 5);
    case 3: /* an owner */
        return (r >> 8) % 6 << 16 | r % (ROWS + 3);
    case 4: /* a time around now */
        return (uint64_t)(crew_now() + (int64_t)(r % (8 * MS)) - 4 * MS);
    case 5: /* a position around those of a ring */
        return wh_load_relaxed(&wh_port_of(S->wheel, &S->geometry, r % ROWS)->comp_tail) +
               (r >> 8) % 2100 - 1050;
    default:
        return r;
    }
}

static void spoil(uint64_t *word, const uint64_t *near)
{
    uint64_t how = dice(4);
    *word = how == 0 ? *word ^ 1ull << dice(64) : how == 1 ? *near : garbage();
    done++;
    step_stops++;
}

static uint64_t *word_in(void *base, uint64_t from, uint64_t bytes)
{
    return (uint64_t *)((char *)base + from) + dice(bytes / 8);
}

/* A word of a worker's segment: mostly of what the clock reads. */
static uint64_t *segment_word(uint32_t row)
{
    wh_worker_seg *seg = S->segments[row];
    wh_au64 *read[] = {&seg->sub_tail, &seg->comp_head, &seg->ret_head, &seg->wait_seq};
    uint64_t what = dice(10);
    if (what < 4)
        return (uint64_t *)read[what];
    if (what < 9) /* near where the clock reads on */
        return (uint64_t *)((char *)seg + S->geometry.sub_off) +
               ((S->peers[row].sub_head + dice(40)) & (S->clock.sub_size - 1));
    return word_in(seg, 0, S->geometry.worker_bytes);
}

static uint64_t *slot_word(uint32_t slot)
{
    if (dice(2))
        return (uint64_t *)&S->clock.states[slot];
    return word_in(&S->clock.slots[slot], 0, sizeof(wh_slot));
}

/* -- the two modes ----------------------------------------------------------------------------- */

static uint32_t hostile_slot(void)
{
    return slabs[dice(HOSTILE_SLABS)] << WH_SLAB_BITS | (uint32_t)dice(WH_SLAB_SLOTS);
}

/* Never 0 nor a name of the honest: that would hand over slots that it goes on to spoil. */
static void spoil_owner(void)
{
    uint64_t word = dice(2) ? H->client.me : garbage();
    for (uint32_t row = 1; row < ROWS; row++)
        if (word == 0 ||
            (S->workers[row].alive && wh_owner_name(word) == S->workers[row].client.me))
            return;
    wh_store_relaxed(&S->clock.owners[slabs[dice(HOSTILE_SLABS)]], word);
    done++;
    step_stops++;
}

static void spoil_own(void)
{
    uint64_t what = dice(16);
    if (what == 0)
        spoil_owner();
    else if (what < 8)
        spoil(slot_word(hostile_slot()), slot_word(hostile_slot()));
    else
        spoil(segment_word(0), segment_word(0));
}

static void spoil_all(void)
{
    uint32_t row = (uint32_t)dice(ROWS - 1);
    uint64_t slabs_bytes = 8ull * S->geometry.slab_count, what = dice(16);
    if (what == 0)
        spoil(word_in(S->clock.owners, 0, slabs_bytes), word_in(S->clock.owners, 0, slabs_bytes));
    else if (what < 8)
        spoil(slot_word((uint32_t)dice(S->config.capacity)),
              slot_word((uint32_t)dice(S->config.capacity)));
    else if (what < 15)
        spoil(segment_word(row), segment_word((uint32_t)dice(ROWS - 1)));
    else /* anywhere, the head too */
        spoil(word_in(S->slots, 0, S->geometry.slots_bytes),
              word_in(S->slots, 0, S->geometry.slots_bytes));
}

/* Show what stands in the ring; arm, as an honest worker would, a slot in whatever state. */
static void spoil_usefully(uint32_t row, uint32_t slot)
{
    wh_client *c = &S->workers[row].client;
    wh_request r = {.deadline = (int64_t)garbage(),
                    .target = (uint32_t)garbage(),
                    .interval = dice(4) ? 0 : (int64_t)garbage(),
                    .cookie = UINT64_MAX};
    uint64_t id = wh_client_arm(c, slot, &r), head = wh_load_relaxed(&c->port->sub_head);
    uint64_t *subs = (uint64_t *)c->subs;
    uint64_t pushed = dice(8);
    for (uint64_t i = 0; i < pushed; i++)
        if (dice(2))
            subs[(head + i) & (c->sub_size - 1)] = id | dice(3) << WH_ID_KIND_AT;
    wh_store_relaxed(&c->seg->sub_tail, head + pushed);
    done++;
    step_stops++;
}

/* -- the clock, bounded ------------------------------------------------------------------------ */

/* Records of spoiled timers in the trace may be wrong; its accounts are not, and its records are
 * whole. A recorder reads now and then, so the ring is full at times. */
static void check_trace(void)
{
    const wh_trace *t = &S->clock.trace;
    static wh_trace_record records[64];
    uint64_t pending = 0, untold = 0, at = wh_load_relaxed(&t->seg->rec_head);
    for (uint32_t slot = 0; slot < S->config.capacity; slot++)
        pending += t->traced[slot].gen != 0;
    for (uint32_t kind = 0; kind < WH_TRACE_KINDS; kind++)
        untold += wh_load_relaxed(&t->seg->lost[kind]) - wh_load_relaxed(&t->seg->told[kind]);
    CHECK(pending == t->pending && untold == t->untold,
          "trace: %llu pending, %llu stories are open", (ull)t->pending, (ull)pending);
    uint64_t count = wh_trace_take(t->seg, at, records, 64);
    CHECK(count <= 64, "trace: the ring is torn");
    for (uint64_t i = 0; i < count; i++)
        CHECK(records[i].kind >= WH_TRACE_SCHEDULED && records[i].kind <= WH_TRACE_LOST,
              "trace: kind %u", records[i].kind);
    if (dice(3) == 0)
        wh_trace_release(t->seg, at + dice(count + 1));
}

static void passes(int64_t by)
{
    uint32_t reaped;
    bool more = true;
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        S->clock.now[kind] += by;
    wh_store_relaxed(&S->clock.seg->virtual_now, crew_now());
    for (int pass = 0; more; pass++) {
        CHECK(pass < MOST_PASSES, "%d passes, and always more to do", MOST_PASSES);
        more = wh_pass(&S->clock, &reaped);
        if (reaped != WH_NIL)
            crew_swept(reaped);
    }
    crew_check_lists();
    if (S->trace)
        check_trace();
}

static void new_clock(void)
{
    clock_dies();
    clock_begins();
    clock_recovers();
    crew_check_lists();
}

/* -- own --------------------------------------------------------------------------------------- */

/* B sends something to the hostile worker: its slot has to come back to B. */
static void lend(void)
{
    wh_request r = {.deadline = crew_now(), .cookie = UINT64_MAX, .target = worker_target(0)};
    uint64_t id;
    wh_call_schedule(&B->client, &r, r.deadline, false, &id);
}

/* False: there is no slab to be had. */
static bool own_begin(void)
{
    S->book.tolerant = true;
    for (uint32_t i = 0; i < S->book.count; i++) {
        entry *e = &S->book.entries[i];
        if (e->owner != 0 && e->to != 0 && e->to != TO_GROUP)
            continue;
        if (entry_open(e))
            worker_cancel(B, i);
        *e = (entry){.id = UINT64_MAX}; /* nobody's business any more */
    }
    uint32_t held = 0;
    while (held < HOSTILE_SLABS && wh_slabs_claim(&H->client.slabs))
        slabs[held++] = H->client.slabs.stack[H->client.slabs.stack_size - 1];
    for (uint32_t slab = 0; slab < S->geometry.slab_count && held < HOSTILE_SLABS; slab++)
        if (wh_owner_name(wh_load_relaxed(&S->clock.owners[slab])) == H->client.me)
            slabs[held++] = slab;
    if (held == 0)
        return false;
    while (held < HOSTILE_SLABS)
        slabs[held++] = slabs[0];
    H->still = true;
    H->member = false;
    S->peers[0].groups = 0;
    return true;
}

/* The hostile worker goes; its slabs too, whatever their owner words say: a new clock sees to
 * that. */
static void own_end(void)
{
    H->alive = false;
    S->leaving[0] = true;
    memset(&H->client, 0xee, sizeof H->client);
    worker_leaves(H, dice(2) ? WH_LEAVE_DROP : WH_LEAVE_KEEP);
    for (int turn = 0; S->leaving[0]; turn++) {
        CHECK(turn < 100, "the hostile worker is never reaped");
        passes(0);
        worker_receive(B);
        worker_receive(C);
    }
    S->policy[0] = WH_LEAVE_DROP;
    new_clock();
    for (int turn = 0; turn < 10; turn++) {
        passes(0);
        worker_receive(B);
        worker_receive(C);
    }
    CHECK(H->incarnation == 0, "the hostile worker is never reaped");
    new_clock();
    worker_hire(0);
    crew_finish();
}

/* A slab whose owner word a new clock could not believe is nobody's again: it claims it anew. One
 * that an honest worker was faster to claim is none of its business, nor one of which others hold
 * slots by now. */
static bool own_slabs(void)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < HOSTILE_SLABS; i++) {
        wh_au64 *owner = &S->clock.owners[slabs[i]];
        if (wh_load_relaxed(owner) == 0)
            wh_store_relaxed(owner, H->client.me);
        uint64_t word = wh_owner_name(wh_load_relaxed(owner));
        if (word != B->client.me && word != C->client.me && !wh_is_split(&S->clock, slabs[i]))
            slabs[held++] = slabs[i];
    }
    for (uint32_t i = held; held && i < HOSTILE_SLABS; i++)
        slabs[i] = slabs[0];
    return held != 0;
}

/* False: the episode is over. */
static bool own_round(void)
{
    if (!own_slabs())
        return false;
    for (uint64_t n = 1 + dice(BATCH); n; n--)
        spoil_own();
    if (dice(2))
        spoil_usefully(0, hostile_slot());
    crew_history(dice(4));
    if (dice(8) == 0)
        lend();
    passes(dice(4) ? 0 : (int64_t)dice(3 * MS));
    if (dice(16) == 0)
        new_clock();
    if (dice(4) == 0) {
        worker_receive(B);
        worker_receive(C);
        passes(0);
    }
    return S->book.count < MOST_ENTRIES - 40;
}

/* -- all --------------------------------------------------------------------------------------- */

static bool all_round(void)
{
    uint32_t row = (uint32_t)dice(ROWS - 1);
    for (uint64_t n = 1 + dice(BATCH); n; n--)
        spoil_all();
    if (S->workers[row].alive)
        spoil_usefully(row, (uint32_t)dice(S->config.capacity));
    passes(dice(4) ? 0 : (int64_t)dice(3 * MS));
    if (dice(16) == 0)
        new_clock();
    worker *w = &S->workers[row];
    if (dice(40) == 0 && w->alive) {
        w->alive = false;
        S->leaving[row] = true;
        worker_leaves(w, some_policy());
    } else if (dice(10) == 0 && !w->alive && !w->incarnation) {
        worker_hire(row);
    }
    return true;
}

/* -- keys -------------------------------------------------------------------------------------- */

static char key_bytes[SOME_KEYS][WH_LONG_KEY];

/* Of few sets, so that they meet. */
static wh_key some_key(void)
{
    uint64_t number = dice(SOME_KEYS), top = (number & 1) << 63;
    return (wh_key){
        .word = wh_words_key(top | number << 3, (~top & 1ull << 63) | number << 3, WH_WORD_TIMER),
        .bytes = key_bytes[number],
        .size = number % 3 ? 16 : (uint32_t)(number * 25)};
}

static uint64_t key_garbage(const wh_key *key)
{
    uint32_t slot = (uint32_t)dice(S->config.capacity);
    switch (dice(9)) {
    case 0:
        return wh_word_tag(key->word.hash, (enum wh_word_state)dice(8));
    case 1:
        return key->word.other;
    case 2: /* of an armed timer, perhaps another key's */
        return wh_id(wh_state_gen(wh_load_relaxed(&S->clock.states[slot])), slot);
    case 3:
        return WH_KEY_CLOSED;
    case 4:
        return 0;
    case 5:
        return wh_word_emptying((uint32_t)dice(ROWS + 2));
    case 6:
        return dice(wh_words_places(&B->keys) + 2);
    default:
        return garbage();
    }
}

static void spoil_keys(void)
{
    wh_key key = some_key();
    wh_keys *k = &S->clock.keys;
    uint32_t place = wh_words_place(k, &key.word, (uint32_t)dice(WH_WORD_CHOICES));
    uint32_t slot = (uint32_t)dice(S->config.capacity);
    void *words[] = {wh_words_tag(k, place),
                     &wh_words_set(k, place)->checks[place % WH_WORD_PLACES & ~1u],
                     wh_words_value(k, place),
                     &k->rows[dice(ROWS)].touching,
                     &((wh_worker_seg *)S->segments[dice(ROWS - 1)])->replacing,
                     word_in(&k->rooms[slot], 0, sizeof(wh_key_room)),
                     word_in(S->directory, 0, wh_keys_parts_of(ROWS, S->config.capacity).bytes)};
    wh_store_relaxed((wh_au64 *)words[dice(sizeof words / sizeof *words)], key_garbage(&key));
    done++;
    step_stops++;
}

/* The key of a slot's timer, as an event's reader has it. */
static void read_key(worker *w)
{
    uint32_t size;
    const char *bytes = wh_key_in(&w->keys, (uint32_t)dice(S->config.capacity), &size);
    static char copy[WH_LONG_KEY];
    CHECK(size <= sizeof copy, "a key of %u bytes", size);
    memcpy(copy, bytes, size);
}

static void call_by_key(worker *w)
{
    wh_key key = some_key();
    wh_request r = {.deadline = crew_now() + (int64_t)dice(20 * MS), .cookie = UINT64_MAX};
    uint64_t id;
    int64_t rest = r.deadline - crew_now();
    switch (dice(8)) {
    case 0:
        wh_call_cancel_key(&w->client, &w->keys, &key, false, &id);
        break;
    case 1:
        wh_call_reschedule_key(&w->client, &w->keys, &key, rest, 0, false, &id);
        break;
    case 2:
        wh_call_pause_key(&w->client, &w->keys, &key);
        wh_call_resume_key(&w->client, &w->keys, &key, false);
        break;
    case 3:
        read_key(w);
        break;
    default:
        wh_call_schedule_key(&w->client, &w->keys, &key, &r, rest, (enum wh_conflict)dice(5), false,
                             &id);
    }
}

static bool keys_round(void)
{
    uint32_t row = (uint32_t)dice(ROWS - 1);
    worker *w = &S->workers[row];
    for (uint64_t n = 1 + dice(BATCH); n; n--)
        spoil_keys();
    for (uint64_t n = dice(12); n && w->alive; n--)
        call_by_key(w);
    passes(dice(4) ? 0 : (int64_t)dice(3 * MS));
    if (dice(16) == 0)
        new_clock();
    if (w->alive && dice(2))
        worker_receive(w);
    if (dice(40) == 0 && w->alive) {
        w->alive = false;
        S->leaving[row] = true;
        wh_words_leave(&w->keys);
        worker_leaves(w, some_policy());
    } else if (dice(4) == 0 && !w->alive && !w->incarnation) {
        worker_hire(row);
    }
    return true;
}

/* -- each -------------------------------------------------------------------------------------- */

static void episode(uint64_t number)
{
    bool own = rounds.path->operate == spoil_own;
    where.k[0] = number;
    crew_trace_bits = number % 2 ? 6 : 0;
    crew_keyed = rounds.path->operate == spoil_keys;
    crew_make(rng_mix(rounds.seed, number));
    crew_history(60);
    if (own && !own_begin())
        return;
    alarm(TRIAL_SECONDS);
    done = 0;
    if (crew_keyed) { /* there is no account to be kept */
        S->book.tolerant = true;
        S->book.count = 0;
    }
    while (done < EPISODE && (own ? own_round() : crew_keyed ? keys_round() : all_round()))
        ;
    if (own)
        own_end();
    else
        new_clock();
}

static const path modes[] = {
    {"own", before_any, spoil_own, 1},
    {"all", before_any, spoil_all, 1},
    {"keys", before_any, spoil_keys, 1},
};

static void run(size_t at)
{
    uint64_t before = step_stops, episodes = opt.stops ? opt.stops / EPISODE + 1 : 10;
    rounds.path = &modes[at];
    where = (struct where){.path = modes[at].name, .seed = opt.seed};
    rounds.seed = rng_mix(opt.seed, at);
    for (uint64_t number = 1; number <= episodes; number++)
        if (!opt.k[0] || number == opt.k[0])
            episode(number);
    rounds.stops[at] = step_stops - before;
    rounds.seeds[at] = 1;
}

int main(int argc, char **argv)
{
    options_read(argc, argv);
    crew_scribbled = true;
    char *pages = mmap(NULL, MOST_DIRECTORY + 2 * GUARD, PROT_NONE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(pages != MAP_FAILED &&
              mprotect(pages + GUARD, MOST_DIRECTORY, PROT_READ | PROT_WRITE) == 0,
          "mmap");
    crew_directory_end = pages + GUARD + MOST_DIRECTORY;
    rounds_add(modes, sizeof modes / sizeof *modes);
    for (size_t at = 0; at < rounds.count; at++)
        if (opt.list)
            printf("%s\n", modes[at].name);
        else if (!opt.path || !strcmp(opt.path, modes[at].name))
            run(at);
    return opt.list ? 0 : rounds_print();
}
