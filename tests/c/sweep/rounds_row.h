/* A worker table and its supervisor, which gives its rows to one tenant after the other, store by
 * store; for pause_row.c. */
#ifndef SWEEP_ROUNDS_ROW_H
#define SWEEP_ROUNDS_ROW_H

#include "step.h"

#include "wheeld/sharing/rows.h"

#define ROWS 3u
#define NAMES 4u
#define TENANCY 5 /* stores for a new tenant: state, incarnation, the name in two halves, state */

typedef struct table {
    wh_registry_seg *registry;
    wh_row *rows;
    uint32_t wanted, found; /* the name that is looked up; the target word that came of it */
    uint32_t row, step, name; /* what the supervisor is at */
    uint32_t next;            /* incarnation */
    uint8_t name_of[1 << 16]; /* by incarnation */
    uint64_t rng;
} table;

static table *S; /* the first thing in the arena */

static inline uint64_t dice(uint64_t limit) { return rng_next(&S->rng) % limit; }

/* Names that are alike in their first word. */
static void name_print(char *name, uint32_t number)
{
    memset(name, 0, 64);
    snprintf(name, 64, "worker with the number %u", number);
}

/* The next store of the supervisor's. */
static void supervisor_step(void)
{
    char name[64];
    if (S->step == 0) {
        S->row = (uint32_t)dice(ROWS);
        S->name = (uint32_t)dice(NAMES);
    }
    wh_row *row = &S->rows[S->row];
    name_print(name, S->name);
    switch (S->step++) {
    case 0:
        wh_store_release(&row->state, WH_ROW_FREE);
        break;
    case 1:
        S->name_of[S->next] = (uint8_t)S->name;
        row->incarnation = S->next++;
        break;
    case 2:
        memcpy(row->name, name, 20);
        break;
    case 3:
        memcpy(row->name + 20, name + 20, 44);
        break;
    default:
        wh_store_release(&row->state, dice(2) ? WH_ROW_ACTIVE : WH_ROW_KEPT);
        S->step = 0;
    }
}

static bool stands(uint32_t number)
{
    char name[64];
    name_print(name, number);
    for (uint32_t i = 0; i < ROWS; i++)
        if (wh_row_taken(&S->rows[i]) && strcmp(S->rows[i].name, name) == 0)
            return true;
    return false;
}

static void look_up(void)
{
    char name[64];
    name_print(name, S->wanted);
    step_begin();
    uint32_t found = wh_worker_target(S->rows, ROWS, name);
    step_end();
    S->found = found;
}

static void round_world(uint64_t seed)
{
    memory->used = 0;
    S = arena_take(sizeof *S);
    S->rng = seed;
    S->next = 1;
    S->registry = arena_take(sizeof(wh_registry_seg) + ROWS * sizeof(wh_row));
    S->registry->rows_off = sizeof(wh_registry_seg);
    S->registry->row_count = ROWS;
    S->rows = (wh_row *)(S->registry + 1);
}

static void before_look_up(void)
{
    for (uint64_t steps = TENANCY * (ROWS + dice(8)); steps; steps--)
        supervisor_step();
    S->wanted = (uint32_t)dice(NAMES);
    for (uint64_t steps = dice(TENANCY); steps; steps--)
        supervisor_step();
}

#include "rounds.h"

#endif
