/* Lease: one seat goes from hand to hand, in the order of tickets, whoever dies.
 *
 * A holder has the seat and gives it back. Two waiters show tickets, look, and sleep until they are
 * woken; one of them may give up in its sleep. Any worker may be killed at every step, once; the
 * supervisor then ends its tenancy, clears its place and wakes all. A turn runs out when nothing
 * else moves.
 *
 * Holds: two workers that are there never have the seat at once; when nothing moves any more, every
 * waiter that lives and has not given up has had it (no wake-up is lost), and the seat is free; no turn
 * runs out unless a worker was killed.
 *
 * MUTANT 1: a waiter looks at the seat before it shows its ticket
 * MUTANT 2: whoever frees the seat looks at the tickets before it does
 * MUTANT 3: who grants the seat does not look whether the ticket is still there
 * MUTANT 4: a waiter that leaves looks for its turn before its ticket is gone
 * MUTANT 5: a waiter reads the futex's number after it has looked
 * MUTANT 6: the supervisor does not wake the waiters
 * MUTANT 7: the supervisor wakes the waiters before it ends the tenancy
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#define WORKERS 3 /* 0 has the seat at first; 1 and 2 wait */
#define FREE 9

byte owner = 0;           /* the row in the seat's word; FREE: 0 */
bool granted;             /* the word's bit */
bool here[WORKERS] = true; /* tenancy: odd */
byte ticket[WORKERS];     /* shown */
byte wake[WORKERS];       /* the futex's number */
byte next_ticket = 1;
bool holds[WORKERS];      /* outside of the memory: it was told */
bool done[WORKERS], dead[WORKERS], left[WORKERS];
bool killed;

/* directory.h:wh_lease_stands */
#define STANDS (owner != FREE && here[owner])
/* lease_queue.h:wh_lease_queue_first */
#define FIRST(row) (ticket[row] != 0 && here[row] && (ticket[3 - row] == 0 || !here[3 - row] || ticket[row] < ticket[3 - row]))

/* A worker dies here, perhaps: never more than one. */
inline step(me)
{
    if
    :: atomic { !killed -> killed = true; dead[me] = true; holds[me] = false; goto dies }
    :: skip
    fi
}

/* leases.h:wh_lease_may_take, wh_lease_offer */
inline offer(me)
{
    do
    :: atomic { STANDS -> break }
    :: atomic { !STANDS && !FIRST(1) && !FIRST(2) -> break }
    :: atomic { !STANDS && FIRST(1) -> turn[me] = 1; seen_ticket[me] = ticket[1] };
       step(me);
       grant(me)
    :: atomic { !STANDS && FIRST(2) -> turn[me] = 2; seen_ticket[me] = ticket[2] };
       step(me);
       grant(me)
    od
}
byte turn[WORKERS], seen_ticket[WORKERS];

/* The word: granted, if it is still free; is the ticket still there (lease_queue.h:wh_lease_queue_stands)?
 * Then wake: lease_queue.h:wh_lease_queue_wake */
inline grant(me)
{
    if
    :: atomic { STANDS -> skip }
    :: atomic { !STANDS -> owner = turn[me]; granted = true };
       step(me);
       if
       :: atomic { MUTANT == 3 || ticket[turn[me]] == seen_ticket[me] -> skip };
          step(me);
          wake[turn[me]]++
       :: atomic { MUTANT != 3 && ticket[turn[me]] != seen_ticket[me] ->
            if
            :: owner == turn[me] && granted -> owner = FREE; granted = false
            :: else -> skip
            fi }
       fi
    fi
}

/* leases.h:wh_lease_give */
inline give(me)
{
    atomic { holds[me] = false; assert(owner == me && !granted); owner = FREE };
    step(me);
    offer(me)
}

/* leases.h:wh_lease_take_word: as the first ticket, or in its turn */
inline look(me)
{
    if
    :: atomic { STANDS && !(owner == me && granted) -> skip }
    :: atomic { (STANDS && owner == me && granted) || (!STANDS && FIRST(me)) ->
         owner = me; granted = false; taken[me] = true }
    :: atomic { !STANDS && !FIRST(me) -> skip }; offer(me)
    fi
}
bool taken[WORKERS];

/* lease_queue.h:wh_lease_queue_hide, leases.h:wh_lease_pass_on */
inline leave(me)
{
#if MUTANT == 4
    mine[me] = (owner == me && granted);
    step(me);
    ticket[me] = 0;
#else
    ticket[me] = 0;
    step(me);
    mine[me] = (owner == me && granted);
#endif
    if
    :: mine[me] ->
       step(me);
       atomic { /* leases.h:wh_lease_swap */
           if
           :: owner == me && granted -> owner = FREE; granted = false
           :: else -> skip
           fi
       };
       step(me);
       offer(me)
    :: else -> skip
    fi
}
bool mine[WORKERS];
byte number[WORKERS];

active proctype Holder()
{
    holds[0] = true;
    step(0);
#if MUTANT == 2
    if
    :: atomic { !FIRST(1) && !FIRST(2) -> holds[0] = false; skip }; step(0); owner = FREE
    :: else -> give(0)
    fi;
#else
    give(0);
#endif
    done[0] = true;
    goto ends;
dies:
    skip;
ends:
    skip
}

proctype Waiter(byte me)
{
#if MUTANT == 1
    number[me] = wake[me];
    look(me);
    step(me);
    atomic { ticket[me] = next_ticket; next_ticket++ };
    step(me);
    goto sleeps;
#endif
    /* lease_queue.h:wh_lease_queue_ticket, lease_queue.h:wh_lease_queue_show */
    atomic { ticket[me] = next_ticket; next_ticket++ };
    step(me);
again:
#if MUTANT == 5
    look(me);
    step(me);
    number[me] = wake[me];
#else
    number[me] = wake[me];
    step(me);
    look(me);
#endif
    if
    :: taken[me] -> goto has
    :: else -> skip
    fi;
sleeps:
    if
    :: wake[me] != number[me] -> goto again
    :: atomic { !left[1] && !left[2] -> left[me] = true }; leave(me); goto ends
    fi;
has:
    atomic { assert(!holds[0] && !holds[3 - me]); holds[me] = true };
    step(me);
    leave(me);
    step(me);
    give(me);
    done[me] = true;
    goto ends;
dies:
    skip;
ends:
    skip
}

/* lease_queue.h:wh_leases_leave, lease_queue.h:wh_lease_queue_wake_all */
inline clear(row)
{
#if MUTANT == 7
    wake[1]++; wake[2]++;
#endif
    here[row] = false;
    ticket[row] = 0;
#if MUTANT != 6 && MUTANT != 7
    wake[1]++; wake[2]++
#endif
}

active proctype Supervisor()
{
end:
    if
    :: dead[0] -> clear(0)
    :: dead[1] -> clear(1)
    :: dead[2] -> clear(2)
    fi
}

/* A turn of one that has left runs out only where a worker was killed before it looked again. */
active proctype Check()
{
    do
    :: timeout ->
        if
        :: STANDS && granted ->
            assert(killed);
            atomic { owner = FREE; granted = false; wake[1]++; wake[2]++ }
        :: else -> break
        fi
    od;
    assert(done[1] || dead[1] || left[1]);
    assert(done[2] || dead[2] || left[2]);
    assert(!STANDS)
}

init { atomic { run Waiter(1); run Waiter(2) } }
