/* JSON: what is needed of it for the control socket's answers. A value is where it begins in a
 * zero-terminated text, or NULL, which has no members and is nothing. Malformed text has none. */
#ifndef WHEELD_JSON_H
#define WHEELD_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The member `name` of an object; NULL: there is none. */
const char *json_member(const char *object, const char *name);

/* Copy a string, zero-terminated. False: it is none; or it does not fit, and is cut off. */
bool json_text(const char *value, char *out, size_t size);

/* A number without sign, fraction or exponent. False: it is none. */
bool json_number(const char *value, uint64_t *out);

bool json_is_true(const char *value);

/* Write `text` as a string, or null for NULL. False: it does not fit. */
bool json_quote(const char *text, char *out, size_t size);

#endif
