/* Exact: few timers in a tick fire at their deadlines, many when it is over; never early. */
#include "single.h"

#define NOW (w.clock.now[WH_CLOCK_BASE])
#define US 1000
#define MOST 64
static int64_t ahead[WH_CLOCK_KINDS]; /* of the base clock, at present */

static int64_t read_time(uint32_t kind) { return NOW + ahead[kind]; }

static void begin(void)
{
    single_make(2, (wh_config){.tick_ns = MS, .wheel_bits = 6, .capacity = 4096});
    w.clock.exact = true;
    w.clock.read_time = read_time;
}

static uint64_t arm_at(hand *h, int64_t deadline)
{
    return arm(h, (wh_request){.deadline = deadline});
}

/* It is `ns`: what there is to do is done. */
static void at(int64_t ns)
{
    uint32_t reaped;
    for (int kind = 0; kind < WH_CLOCK_KINDS; kind++)
        w.clock.now[kind] = ns + ahead[kind];
    for (int turn = 0; wh_pass(&w.clock, &reaped); turn++)
        CHECK(turn < 64, "it is looked at again and again");
    world_ask(&w, request_check, NULL);
}

static void expect_next(int64_t ns)
{
    int64_t next = wh_next_ns(&w.clock);
    CHECK(next == ns, "the clock wakes at %lld, expected %lld", (long long)next, (long long)ns);
}

/* So many events are there; none of them is early, and their ticks are not over yet. */
static void expect(hand *h, uint64_t count)
{
    wh_completion events[MOST];
    uint64_t got = wh_client_receive(&h->client, (char *)events, MOST);
    CHECK(got == count, "%llu events, expected %llu", (ull)got, (ull)count);
    wh_client_reclaim(&h->client);
    for (uint64_t i = 0; i < got; i++)
        CHECK(events[i].deadline <= events[i].fired && events[i].fired - events[i].deadline < MS,
              "due at %lld, fired at %lld", (long long)events[i].deadline,
              (long long)events[i].fired);
}

static void play_one(void)
{
    begin();
    arm_at(A, 2300 * US);
    at(0);
    expect_next(2300 * US);
    at(MS); /* that tick is not its own */
    at(2300 * US - 1);
    expect(A, 0);
    expect_next(2300 * US);
    at(2300 * US);
    expect(A, 1);
    expect_next(INT64_MAX);
}

static void play_few_and_many(void)
{
    begin();
    for (int i = 1; i <= WH_FEW; i++)
        arm_at(A, 1000 * US + i * 200 * US);
    at(0);
    expect_next(1800 * US);
    at(1800 * US - 1);
    expect(A, 0);
    at(1800 * US);
    expect(A, WH_FEW);
    for (int i = 0; i <= WH_FEW; i++)
        arm_at(A, 2100 * US + i * 100 * US);
    at(1900 * US);
    expect_next(3 * MS);
    at(3 * MS - 1);
    expect(A, 0);
    at(3 * MS);
    expect(A, WH_FEW + 1);
}

/* One wake-up for the tick of both: at the later one's deadline. */
static void play_two_shards(void)
{
    begin();
    arm_at(A, 1200 * US), arm_at(B, 1600 * US);
    at(0);
    expect_next(1600 * US);
    at(1400 * US); /* somebody rang */
    expect(A, 1), expect(B, 0);
    expect_next(1600 * US);
    at(1600 * US);
    expect(B, 1);
    arm_at(A, 2200 * US);
    for (int i = 0; i <= WH_FEW; i++)
        arm_at(B, 2500 * US);
    at(1700 * US);
    expect_next(3 * MS);
    arm_at(B, 4100 * US); /* of a later tick */
    at(3 * MS);
    expect(A, 1), expect(B, WH_FEW + 1);
    arm_at(A, 3900 * US);
    at(3100 * US);
    expect_next(3900 * US);
}

/* The first tick of an upper bucket: with none behind it that would cascade, it is as any other. */
static void play_upper_bucket(void)
{
    begin();
    arm_at(A, 63300 * US);
    at(0);
    expect_next(63300 * US);
    at(63300 * US);
    expect(A, 1);
    arm_at(A, 127300 * US), arm_at(A, 130300 * US);
    at(63400 * US);
    expect_next(128 * MS);
    at(128 * MS - 1);
    expect(A, 0);
    at(128 * MS);
    expect(A, 1);
    expect_next(130300 * US);
}

/* The clock is not told of a move to later: it finds out when it looks. */
static void play_moved(void)
{
    begin();
    uint64_t near = arm_at(A, 1300 * US), far = arm_at(A, 1400 * US);
    at(0);
    CHECK(wh_call_reschedule_at(&A->client, near, 1700 * US, true) == WH_CALL_OK &&
              wh_call_reschedule_at(&A->client, far, 80 * MS, true) == WH_CALL_OK,
          "not moved");
    expect_next(1400 * US);
    at(1400 * US);
    expect(A, 0);
    expect_next(1700 * US);
    at(1700 * US);
    expect(A, 1);
    at(79 * MS);
    expect_next(80 * MS);
}

/* Ticks closer than the wheel's. */
static void play_periodic(void)
{
    begin();
    arm(A, (wh_request){.deadline = 1200 * US, .interval = 300 * US});
    for (int64_t due = 1200 * US; due < 4 * MS; due += 300 * US) {
        at(due - 1);
        expect(A, 0);
        expect_next(due);
        at(due);
        expect(A, 1);
    }
}

static void play_cancelled(void)
{
    begin();
    uint64_t id = arm_at(A, 1300 * US);
    at(0);
    CHECK(wh_slot_cancel(&A->client.states[wh_id_slot(id)], wh_id_gen(id)), "not cancelled");
    at(1300 * US); /* before its submission came */
    expect(A, 0);
    CHECK(wh_load_relaxed(&w.clock.seg->returned) == 1, "its slot is not given back");
    expect_next(INT64_MAX);
}

/* The wall clock runs fast: a timer of it is due before the tick in which it was placed. The clock
 * does not wake for a tick that it cannot fire yet. */
static void play_wall_clock_drifts(void)
{
    begin();
    arm(A, (wh_request){.deadline = 10500 * US, .flags = WH_CLOCK_REALTIME});
    at(0);
    expect_next(10500 * US);
    ahead[WH_CLOCK_REALTIME] = 5 * MS;
    at(6 * MS);
    expect_next(10 * MS);
    at(10 * MS);
    CHECK(wh_client_ready(&A->client) == 1, "it is not fired");
}

/* Who arms a timer for the tick in which the clock wakes does not ring it; for one before, does. */
static void play_sleep(void)
{
    begin();
    arm_at(A, 5300 * US);
    at(MS);
    CHECK(wh_may_sleep(&w.clock, wh_next_ns(&w.clock)), "it could sleep");
    uint64_t bells = wh_load_relaxed(&A->client.seg->bells);
    arm_at(A, 5000 * US + 1);
    CHECK(wh_load_relaxed(&A->client.seg->bells) == bells, "rung for the same tick");
    arm_at(A, 5000 * US);
    CHECK(wh_load_relaxed(&A->client.seg->bells) == bells + 1, "not rung for the tick before");
}

/* -- at random --------------------------------------------------------------------------------- */

typedef struct pending {
    hand *hand;
    int64_t due;
    uint64_t id;
} pending;
static pending there[512];
static uint32_t count;

static int64_t tick_after(int64_t ns) { return (ns + MS - 1) / MS; }

static void take(hand *h)
{
    wh_completion events[512];
    uint64_t got = wh_client_receive(&h->client, (char *)events, 512);
    wh_client_reclaim(&h->client);
    for (uint64_t i = 0; i < got; i++) {
        uint32_t place = 0;
        while (place < count && there[place].id != events[i].id)
            place++;
        CHECK(place < count && there[place].due <= events[i].fired, "early, or cancelled");
        there[place] = there[--count];
    }
}

/* Nothing waits whose tick is over, nor what is alone with few that are all due. */
static void look_for_late(void)
{
    int64_t next = NOW / MS + 1, last[2] = {0, 0};
    uint32_t few[2] = {0, 0};
    for (uint32_t i = 0; i < count; i++) {
        CHECK(there[i].due > NOW || tick_after(there[i].due) == next, "due at %lld, it is %lld",
              (long long)there[i].due, (long long)NOW);
        if (tick_after(there[i].due) != next)
            continue;
        uint32_t row = there[i].hand->row;
        few[row]++;
        last[row] = there[i].due > last[row] ? there[i].due : last[row];
    }
    for (int row = 0; row < 2; row++)
        CHECK(few[row] == 0 || few[row] > WH_FEW || last[row] > NOW || next % 64 == 0,
              "row %d: %u timers, the last due at %lld, it is %lld", row, few[row],
              (long long)last[row], (long long)NOW);
}

static void play_random(void)
{
    uint64_t rng = rng_seeded(7);
    begin();
    for (uint64_t step = 0; step < 3000 * opt.scale; step++) {
        for (uint64_t arms = rng_below(&rng, 4); arms && count < 512; arms--) {
            hand *h = &hands[rng_below(&rng, 2)];
            int64_t due = NOW + (int64_t)rng_below(&rng, rng_below(&rng, 4) ? 5 * MS : 200 * MS);
            there[count++] = (pending){h, due, arm_at(h, due)};
        }
        if (count && rng_below(&rng, 8) == 0) {
            uint32_t place = (uint32_t)rng_below(&rng, count);
            if (wh_call_cancel(&there[place].hand->client, there[place].id, true) == WH_CALL_OK)
                there[place] = there[--count];
        }
        at(NOW);
        int64_t next = wh_next_ns(&w.clock), soon = NOW + (int64_t)rng_below(&rng, 700 * US);
        CHECK(next > NOW, "it would not sleep");
        at(next < soon || rng_below(&rng, 2) == 0 ? next < soon + MS ? next : soon : soon);
        take(A), take(B);
        look_for_late();
    }
}

int main(int argc, char **argv)
{
    static const single_case cases[] = {
        {"one", play_one},
        {"few, and many", play_few_and_many},
        {"two shards", play_two_shards},
        {"the first tick of an upper bucket", play_upper_bucket},
        {"moved to later", play_moved},
        {"a periodic timer faster than the tick", play_periodic},
        {"cancelled", play_cancelled},
        {"the wall clock drifts", play_wall_clock_drifts},
        {"who rings", play_sleep},
        {"at random", play_random},
    };
    return cases_main(argc, argv, cases, sizeof cases / sizeof *cases);
}
