/* Rows: any process may look up a worker by name while the supervisor writes the table.
 *
 * A row gets a new tenant in this order: state free, incarnation, name, state active. So a reader
 * loads the incarnation, a state that confirms its tenant's name, the name, and the incarnation
 * again: if it is the same, the name is not a later tenant's.
 */
#ifndef WHEELD_ROWS_H
#define WHEELD_ROWS_H

#include <string.h>

#include "wheeld/shared/agreed.h"

#define WH_ROW_NAME sizeof(((wh_row *)0)->name)
#define WH_TARGET_NAME (WH_ROW_NAME + 8) /* room for "group:", too */

/* In use: connected, or kept for a successor. */
static inline bool wh_row_taken(wh_row *row)
{
    uint32_t state = wh_load_acquire(&row->state); /* pairs: row */
    return state == WH_ROW_ACTIVE || state == WH_ROW_KEPT;
}

/* pairs: row - acquire: what is looked at next was loaded after it */
static inline uint64_t wh_row_word(void *word) { return wh_load_acquire((wh_au64 *)word); }

/* The incarnation of a row's tenant, which names it; 0: there is none. */
static inline uint64_t wh_row_incarnation(wh_row *row)
{
    uint64_t incarnation = wh_row_word(&row->incarnation);
    return wh_row_taken(row) ? incarnation : 0;
}

/* Copy the name of a row's tenant. Returns its incarnation; 0: there is none, or it changes. */
static inline uint64_t wh_row_tenant(wh_row *row, char name[WH_ROW_NAME])
{
    uint64_t incarnation = wh_row_incarnation(row);
    if (incarnation == 0)
        return 0;
    for (size_t at = 0; at < WH_ROW_NAME; at += 8) {
        uint64_t word = wh_row_word(row->name + at);
        memcpy(name + at, &word, 8);
    }
    return wh_row_word(&row->incarnation) == incarnation ? incarnation : 0;
}

/* The target word of the row's tenant, if that is its name; else 0. */
static inline uint32_t wh_row_target(wh_row *row, uint32_t index, const char *name)
{
    char found[WH_ROW_NAME];
    uint64_t tenant = wh_row_tenant(row, found);
    return tenant && strncmp(found, name, sizeof found) == 0 ? wh_target_word(index, tenant) : 0;
}
_Static_assert(offsetof(wh_row, name) % 8 == 0 && sizeof((wh_row){0}.name) % 8 == 0, "whole words");

/* The target word of the worker with that name, connected or kept for its successor; 0: none. */
static inline uint32_t wh_worker_target(wh_row *rows, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t target = 0;
        if (wh_row_taken(&rows[i]) && strncmp(rows[i].name, name, 8) == 0) /* worth a look */
            target = wh_row_target(&rows[i], i, name);
        if (target)
            return target;
    }
    return 0;
}

/* The target word of the group with that name; 0: there is none. */
static inline uint32_t wh_group_target(wh_group *groups, const char *name)
{
    for (uint32_t i = 0; i < WH_GROUPS; i++) {
        uint32_t used = wh_load_acquire(&groups[i].used); /* pairs: group */
        if (wh_group_named(used) && strncmp(groups[i].name, name, sizeof groups[i].name) == 0)
            return wh_target_group(i, wh_group_uses(used));
    }
    return 0;
}

/* Write the receiver that a target word means, as users name it: a worker, or "group:NAME". False:
 * it is gone, and what was for it goes to the timer's owner. */
static inline bool wh_target_name(wh_row *rows, uint32_t count, wh_group *groups, uint32_t target,
                                  char name[WH_TARGET_NAME])
{
    static const char prefix[] = "group:";
    uint32_t row = wh_target_worker(target) - 1, number = wh_target_number(target);
    if (wh_target_worker(target) != WH_TARGET_GROUP) {
        uint64_t tenant = row < count ? wh_row_tenant(&rows[row], name) : 0;
        return tenant && wh_target_word(row, tenant) == target;
    }
    const wh_group *group = &groups[number % WH_GROUPS];
    uint32_t used = wh_load_acquire((wh_au32 *)&group->used); /* pairs: group */
    if (!wh_group_named(used) || wh_group_uses(used) != wh_target_uses(target))
        return false;
    memcpy(name, prefix, sizeof prefix - 1);
    memcpy(name + sizeof prefix - 1, group->name, sizeof group->name);
    return true;
}

#endif
