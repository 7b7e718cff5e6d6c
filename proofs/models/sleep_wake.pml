/* Sleep and wake: the doorbells between a worker and the clock, in both directions.
 *
 * The worker arms TIMERS timers, submits them and polls for their expirations; every timer is due at
 * once and sleeps are without end, so whatever is not rung for is never done. The completion ring has
 * one entry, so that the second expiration waits in the backlog. Once, another worker rings the clock,
 * or (at any step, in recovery too) the clock is killed and followed by a new one.
 *
 * Holds: when nothing moves any more, every timer was delivered (no wake-up is lost, neither side
 * sleeps beside work). The worker rings once per sleep of the clock at most, the clock once per wait of
 * the worker. Nobody spins.
 * NO CYCLES: the state graph has none.
 *
 * MUTANT 1: a worker reads sleep_until before it publishes its tail
 * MUTANT 2: the clock looks at the rings before it stores sleep_until
 * MUTANT 3: the clock moves sleep_seq before it empties its FIFO
 * MUTANT 4: the clock empties its FIFO after it looked at the rings
 * MUTANT 5: a worker rings always, not once per sleep
 * MUTANT 6: a worker looks at comp_tail before it says that it waits
 * MUTANT 7: the clock reads wait_seq before it publishes comp_tail
 * MUTANT 8: a worker empties its FIFO after it said that it waits
 * MUTANT 9: a worker looks at backlog before it stores comp_head
 * MUTANT 10: the clock does not look for room behind a full ring before it sleeps
 * MUTANT 11: a new clock does not move sleep_seq
 * MUTANT 12: a new clock does not ring the workers
 * MUTANT 13: the clock answers each wait as often as it publishes
 * MUTANT 14: a worker's next wait has the wait_seq of the last
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define TIMERS 2
#define RING 1
#define NEVER 255

#define AWAKE 0  /* sleep_until == INT64_MIN: nobody rings */
#define ASLEEP 1 /* sleep_until is past every deadline here */

/* Shared memory and FIFOs: all of it survives the clock. A full FIFO is as good as one byte. */
bool bell, worker_bell;
byte sleep_until, sleep_seq;
byte sub_tail, sub_head, comp_tail, comp_head, wait_seq;
bool backlog;
byte armed; /* timers whose slots say ARMED */

/* For the checks: what the last ring in either direction was for. */
byte rang_in = NEVER, answered;

bool kill, restarted;

/* -- the worker ----------------------------------------------------------------------------------- */

/* client.h:wh_client_ring, doorbell.h:wh_bell_ring */
inline ring_clock()
{
    atomic {
        seq = sleep_seq;
        if
        :: seq == rung_seq && MUTANT != 5 -> goto rung
        :: else -> rung_seq = seq
        fi
    };
    atomic {
        assert(rang_in != seq);
        rang_in = seq;
        bell = true
    };
rung:
    seq = 0
}

/* client.h:wh_client_publish: tail first, then sleep_until */
inline publish_submission()
{
#if MUTANT == 1
    until = sleep_until;
    sub_tail = armed;
#else
    sub_tail = armed;
    until = sleep_until;
#endif
}

/* receive_part.c:worker_collect: FIFO first, then the ring */
inline collect()
{
    if
    :: waiting & 1 ->
        atomic { waiting++; wait_seq = waiting }; /* receive.h:wh_client_awake */
#if MUTANT != 8
        worker_bell = false; /* doorbell.h:wh_bell_clear */
#endif
        tail = comp_tail
    :: else -> tail = comp_tail /* receive.h:wh_client_ready */
    fi
}

/* receive.h:wh_client_receive: head first, then backlog */
inline receive()
{
#if MUTANT == 9
    more = backlog;
    atomic { head = tail; comp_head = head };
#else
    atomic { head = tail; comp_head = head };
    more = backlog; /* receive.h:wh_client_backlogged */
#endif
}

/* sleep_part.c:worker_sleep, receive.h:wh_client_may_sleep: wait_seq first, then comp_tail */
inline sleep()
{
#if MUTANT == 6
    tail = comp_tail;
    atomic { waiting++; wait_seq = waiting };
#elif MUTANT == 14
    atomic { waiting = 1; wait_seq = waiting };
    tail = comp_tail;
#else
    atomic { waiting++; wait_seq = waiting };
    tail = comp_tail;
#endif
#if MUTANT == 8
    worker_bell = false;
#endif
    if
    :: tail == head -> worker_bell /* ppoll */
    :: else
    fi
}

active proctype Worker()
{
    byte seq, until, tail, head, waiting;
    byte rung_seq = NEVER;
    bool more;
    do
    :: armed < TIMERS ->
        armed++; /* client.h:wh_client_arm */
        publish_submission();
        if
        :: atomic { until == ASLEEP -> until = 0 }; goto ring
        :: else
        fi
    :: head < armed ->
        collect();
        if
        :: tail != head ->
            receive();
            if
            :: atomic { more -> more = false }; goto ring
            :: else
            fi
        :: else -> sleep()
        fi
    :: head == TIMERS -> break
    :: false ->
ring:   ring_clock()
    od
}

/* -- the clock ------------------------------------------------------------------------------------ */

/* deliver.h:wh_put_expired or, without room, deliver.h:wh_to_backlog */
inline deliver()
{
    do
    :: atomic { put != known && put - comp_head < RING -> put++; dirty = true }
    :: else -> break
    od;
    if
    :: put != known -> backlog = true
    :: else
    fi
}

/* deliver.h:wh_publish: comp_tail first, then wait_seq */
inline publish()
{
#if MUTANT == 7
    waits = wait_seq;
    comp_tail = put;
#else
    comp_tail = put;
    waits = wait_seq;
#endif
    if
    :: (waits & 1) && (waits != rung || MUTANT == 13) ->
        atomic {
            rung = waits;
            assert(answered != waits || restarted);
            answered = waits;
            worker_bell = true
        }
    :: else
    fi
}

/* pass.h:wh_pass */
inline pass()
{
    if
    :: backlog -> /* backlog.h:wh_settle_backlog */
        deliver();
        if
        :: put == known -> backlog = false
        :: else
        fi
    :: else
    fi;
    /* drain.h:wh_drain; what recovery has met is passed over, by generation */
    atomic {
        drained = sub_tail;
        if
        :: known < drained -> known = drained
        :: else
        fi
    };
    sub_head = drained;
    deliver(); /* fire.h:wh_fire_once */
    if
    :: atomic { dirty -> dirty = false }; publish()
    :: else
    fi
}

/* pass.h:wh_may_sleep after its first store */
inline look()
{
    atomic {
        if
        :: sub_tail != drained -> quiet = false /* pass.h:wh_drained */
        :: else
        fi
    };
    atomic {
        if
        :: MUTANT != 10 && backlog && put - comp_head < RING ->
            quiet = false /* backlog.h:wh_can_settle */
        :: else
        fi
    }
}

/* clock_part.c:clock_sleep: poll, then the FIFO, then sleep_seq, then the rings */
inline nap()
{
    quiet = true;
#if MUTANT == 2
    look();
    sleep_until = ASLEEP;
#else
    sleep_until = ASLEEP;
    look();
#endif
    if
    :: quiet ->
end_ppoll:
        bell;
#if MUTANT == 3
        wake();
        bell = false
#elif MUTANT == 4
        wake()
#else
        bell = false; /* doorbell.h:wh_bell_clear */
        wake()
#endif
    :: else -> wake()
    fi
}

/* pass.h:wh_awake */
inline wake()
{
    sleep_until = AWAKE;
    sleep_seq++
}

/* recover.h:wh_clock_recover, as far as sleeping goes. The bytes that the worker rang under the last clock may
 * have been read and not looked at; what that clock published may not have been rung for. */
inline recover()
{
#if MUTANT != 11
    wake();
#endif
    known = armed;
#if MUTANT != 12
    worker_bell = true
#endif
}

active proctype Clock()
{
    byte known, put, drained, rung, waits;
    bool dirty, quiet;
begin:
    {
        if
        :: restarted -> recover()
        :: else
        fi;
        do
        ::  pass();
#if MUTANT == 4
            bell = false;
#endif
            nap()
        od
    } unless {
        atomic {
            kill; /* all that was private is gone */
            kill = false;
            restarted = true;
            waits = 0;
            dirty = false;
            quiet = false;
            rung = 0;
            known = 0;
            put = comp_tail; /* clock.h:wh_clock_attach */
            drained = sub_head
        }
    };
    goto begin
}

active proctype Fate()
{
    if
    :: bell = true
    :: kill = true
    :: skip
    fi
}

active proctype Check()
{
    timeout;
    assert(comp_head == TIMERS)
}
