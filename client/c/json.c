/* JSON: see json.h. */
#include "json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_blanks(const char *p) { return p + strspn(p, " \t\r\n"); }

/* `p` is at the opening quote. */
static const char *skip_string(const char *p)
{
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && *++p == '\0')
            return NULL;
    return *p ? p + 1 : NULL;
}

static const char *skip_value(const char *p)
{
    size_t depth = 0;
    do {
        p = skip_blanks(p);
        size_t word = strcspn(p, "{}[],:\" \t\r\n");
        if (*p == '"') {
            if ((p = skip_string(p)) == NULL)
                return NULL;
        } else if (word) {
            p += word;
        } else if (*p == '{' || *p == '[') {
            depth++, p++;
        } else if (depth == 0 || *p == '\0') {
            return NULL;
        } else {
            depth -= *p == '}' || *p == ']', p++;
        }
    } while (depth);
    return p;
}

const char *json_member(const char *object, const char *name)
{
    size_t length = strlen(name);
    const char *p = object ? skip_blanks(object) : "";
    if (*p != '{')
        return NULL;
    do {
        const char *key = skip_blanks(p + 1), *end = *key == '"' ? skip_string(key) : NULL;
        if (end == NULL)
            return NULL;
        const char *colon = skip_blanks(end);
        if (*colon != ':')
            return NULL;
        const char *value = skip_blanks(colon + 1);
        if ((size_t)(end - key) == length + 2 && memcmp(key + 1, name, length) == 0)
            return value;
        if ((p = skip_value(value)) == NULL)
            return NULL;
        p = skip_blanks(p);
    } while (*p == ',');
    return NULL;
}

/* Four hexadecimal digits; -1: they are none. */
static long read_code(const char *p)
{
    char digits[5] = {0};
    for (int i = 0; i < 4; i++)
        if ((digits[i] = p[i]) == '\0' || !strchr("0123456789abcdefABCDEF", p[i]))
            return -1;
    return strtol(digits, NULL, 16);
}

/* The character of the escape at *p, which moves behind it; -1: it is malformed. */
static long read_escape(const char **p)
{
    static const char letters[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    char letter = *(*p)++;
    const char *at = letter ? strchr(letters, letter) : NULL;
    if (at)
        return meant[at - letters];
    long code = letter == 'u' ? read_code(*p) : -1, low;
    if (code < 0)
        return -1;
    *p += 4;
    if (code >= 0xd800 && code < 0xdc00 && (*p)[0] == '\\' && (*p)[1] == 'u' &&
        (low = read_code(*p + 2)) >= 0xdc00 && low < 0xe000) {
        *p += 6;
        return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    return code;
}

/* As UTF-8; returns its bytes. */
static size_t write_character(long code, char bytes[4])
{
    if (code < 0x80)
        return bytes[0] = (char)code, 1;
    size_t more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    for (size_t i = more; i > 0; i--, code >>= 6)
        bytes[i] = (char)(0x80 | (code & 0x3f));
    bytes[0] = (char)(0xff00 >> (more + 1) | code);
    return more + 1;
}

bool json_text(const char *value, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    if (value == NULL || *value != '"')
        return false;
    for (const char *p = value + 1; *p != '"';) {
        char bytes[4] = {*p};
        size_t n = 1;
        if (*p == '\0')
            return false;
        if (*p++ == '\\') {
            long code = read_escape(&p);
            if (code <= 0) /* a zero would end it */
                return false;
            n = write_character(code, bytes);
        }
        if (used + n >= size)
            return false;
        memcpy(out + used, bytes, n);
        out[used += n] = '\0';
    }
    return true;
}

bool json_number(const char *value, uint64_t *out)
{
    char *end;
    if (value == NULL || *value < '0' || *value > '9')
        return false;
    errno = 0;
    *out = strtoull(value, &end, 10);
    return errno == 0 && *end && strchr(",}] \t\r\n", *end);
}

bool json_is_true(const char *value) { return value && strncmp(value, "true", 4) == 0; }

bool json_quote(const char *text, char *out, size_t size)
{
    size_t used = 0;
    if (text == NULL)
        return (size_t)snprintf(out, size, "null") < size;
    if (size < 3)
        return false;
    out[used++] = '"';
    for (const char *p = text; *p; p++) {
        bool plain = (unsigned char)*p >= 0x20 && *p != '"' && *p != '\\';
        int n = snprintf(out + used, size - used, plain ? "%c" : "\\u%04x", (unsigned char)*p);
        if ((used += (size_t)n) + 2 > size)
            return false;
    }
    memcpy(out + used, "\"", 2);
    return true;
}
