/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles of plain data, of all protocols that write it in binary (2 to 5).
**
** A pickle is a program for a stack machine. Here the machine has no instruction that looks up a
** name or calls something: a pickle with one is refused where it stands.
*/
#include "core/base/error.h"
#include "verify/import/value.h"

#include <string.h>

#define STACK_MAX (1u << 20)
#define MEMO_MAX (1u << 22)

typedef struct machine {
    cd_arena *arena;
    const unsigned char *bytes;
    size_t count, at;
    cd_value **stack; /* (height) NULL: a mark */
    size_t height, stack_capacity;
    cd_value **memo;
    size_t memo_count, memo_capacity;
    bool is_damaged;
} machine;

static uint64_t take_number(machine *m, size_t byte_count)
{
    uint64_t number = 0;
    if (byte_count > m->count - m->at) {
        m->is_damaged = true;
        return 0;
    }
    for (size_t i = 0; i < byte_count; i++) number |= (uint64_t)m->bytes[m->at + i] << (8 * i);
    m->at += byte_count;
    return number;
}

static void push(machine *m, cd_value *v)
{
    if (m->height >= STACK_MAX || !cd_arena_grow(m->arena, (void **)&m->stack, &m->stack_capacity,
                                                 m->height + 1, sizeof(cd_value *))) {
        m->is_damaged = true;
        return;
    }
    m->stack[m->height++] = v;
}

static void push_new(machine *m, cd_value_kind kind, int64_t number)
{
    cd_value *v = cd_value_push(m->arena, kind);
    if (v == NULL) {
        m->is_damaged = true;
        return;
    }
    v->number = number;
    push(m, v);
}

static cd_value *pop(machine *m)
{
    cd_value *v = m->height > 0 ? m->stack[--m->height] : NULL;
    m->is_damaged |= v == NULL; /* a mark is no value */
    return v;
}

static void push_text(machine *m, uint64_t byte_count)
{
    if (byte_count > m->count - m->at) {
        m->is_damaged = true;
        return;
    }
    cd_value *v = cd_value_push_text(m->arena, (const char *)m->bytes + m->at, (size_t)byte_count);
    m->at += (size_t)byte_count;
    m->is_damaged |= v == NULL;
    if (v != NULL) push(m, v);
}

static void push_real(machine *m)
{
    uint64_t bits = 0;
    double real;
    for (int i = 0; i < 8; i++) bits = bits << 8 | take_number(m, 1);
    memcpy(&real, &bits, sizeof real);
    push_new(m, CD_VALUE_REAL, 0);
    if (!m->is_damaged) m->stack[m->height - 1]->real = real;
}

/* Where the items after the last mark begin. */
static size_t find_mark(machine *m)
{
    size_t at = m->height;
    while (at > 0 && m->stack[at - 1] != NULL) at--;
    m->is_damaged |= at == 0;
    return at;
}

/* What lies above the mark, into a new list, or into the container below the mark. */
static void collect(machine *m, bool is_new)
{
    const size_t first = find_mark(m);
    if (m->is_damaged) return;
    cd_value *into = is_new      ? cd_value_push(m->arena, CD_VALUE_LIST)
                     : first < 2 ? NULL
                                 : m->stack[first - 2];
    m->is_damaged |= into == NULL;
    for (size_t i = first; !m->is_damaged && i < m->height; i++)
        m->is_damaged |= !cd_value_add(m->arena, into, m->stack[i]);
    if (m->is_damaged) return;
    m->height = first - 1;
    if (is_new) push(m, into);
}

static void collect_last(machine *m, size_t count)
{
    cd_value *list = cd_value_push(m->arena, CD_VALUE_LIST);
    if (list == NULL || m->height < count) {
        m->is_damaged = true;
        return;
    }
    for (size_t i = m->height - count; !m->is_damaged && i < m->height; i++)
        m->is_damaged |= m->stack[i] == NULL || !cd_value_add(m->arena, list, m->stack[i]);
    m->height -= count;
    push(m, list);
}

/* count values at the top go into the container below them. */
static void add_last(machine *m, size_t count)
{
    if (m->height < count + 1 || m->stack[m->height - count - 1] == NULL) {
        m->is_damaged = true;
        return;
    }
    cd_value *into = m->stack[m->height - count - 1];
    for (size_t i = m->height - count; !m->is_damaged && i < m->height; i++)
        m->is_damaged |= m->stack[i] == NULL || !cd_value_add(m->arena, into, m->stack[i]);
    m->height -= count;
}

static void keep(machine *m, uint64_t slot)
{
    if (slot >= MEMO_MAX || m->height == 0 || m->stack[m->height - 1] == NULL ||
        !cd_arena_grow(m->arena, (void **)&m->memo, &m->memo_capacity, (size_t)slot + 1,
                       sizeof(cd_value *))) {
        m->is_damaged = true;
        return;
    }
    m->memo[slot] = m->stack[m->height - 1];
    if (slot >= m->memo_count) m->memo_count = (size_t)slot + 1;
}

static void recall(machine *m, uint64_t slot)
{
    cd_value *v = slot < m->memo_count ? m->memo[slot] : NULL;
    m->is_damaged |= v == NULL;
    if (v != NULL) push(m, v);
}

static void push_long(machine *m)
{
    const size_t byte_count = (size_t)take_number(m, 1);
    if (byte_count > 8) {
        m->is_damaged = true; /* nothing in a dump is that large */
        return;
    }
    uint64_t number = take_number(m, byte_count);
    const bool is_negative =
        byte_count > 0 && byte_count < 8 && number >> (8 * byte_count - 1) != 0;
    if (is_negative) number |= ~UINT64_C(0) << (8 * byte_count);
    push_new(m, CD_VALUE_NUMBER, (int64_t)number);
}

/* False: the instruction is none of plain data. */
static bool step(machine *m, unsigned char code)
{
    switch (code) {
    case 0x80: /* protocol */
        (void)take_number(m, 1);
        return true;
    case 0x95: /* frame */
        (void)take_number(m, 8);
        return true;
    case '(':
        push(m, NULL);
        return true;
    case '}':
        push_new(m, CD_VALUE_MAP, 0);
        return true;
    case ']':
    case ')':
        push_new(m, CD_VALUE_LIST, 0);
        return true;
    case 'N':
        push_new(m, CD_VALUE_NONE, 0);
        return true;
    case 0x88:
    case 0x89:
        push_new(m, CD_VALUE_NUMBER, code == 0x88);
        return true;
    case 'J':
        push_new(m, CD_VALUE_NUMBER, (int32_t)(uint32_t)take_number(m, 4));
        return true;
    case 'K':
    case 'M':
        push_new(m, CD_VALUE_NUMBER, (int64_t)take_number(m, code == 'K' ? 1 : 2));
        return true;
    case 0x8a:
        push_long(m);
        return true;
    case 'G':
        push_real(m);
        return true;
    case 'X':
        push_text(m, take_number(m, 4));
        return true;
    case 0x8c:
        push_text(m, take_number(m, 1));
        return true;
    case 0x8d:
        push_text(m, take_number(m, 8));
        return true;
    case 't':
    case 'l':
        collect(m, true);
        return true;
    case 'e':
    case 'u':
        collect(m, false);
        return true;
    case 0x85:
    case 0x86:
    case 0x87:
        collect_last(m, (size_t)code - 0x84);
        return true;
    case 'a':
    case 's':
        add_last(m, code == 'a' ? 1 : 2);
        return true;
    case 'q':
    case 'r':
        keep(m, take_number(m, code == 'q' ? 1 : 4));
        return true;
    case 'h':
    case 'j':
        recall(m, take_number(m, code == 'h' ? 1 : 4));
        return true;
    case 0x94:
        keep(m, m->memo_count);
        return true;
    case '0':
        (void)pop(m);
        return true;
    default:
        return false;
    }
}

cddp_status cd_pickle_read(cd_arena *arena, const char *bytes, size_t byte_count, cd_value **value,
                           cddp_error *err)
{
    machine m = {.arena = arena, .bytes = (const unsigned char *)bytes, .count = byte_count};
    while (m.at < m.count && !m.is_damaged) {
        const unsigned char code = m.bytes[m.at++];
        if (code == '.') {
            *value = pop(&m);
            break;
        }
        if (!step(&m, code))
            return cd_fail(err, CDDP_E_CORRUPT,
                           "a pickle with more than plain data (instruction 0x%02x at byte %zu); "
                           "nothing of it is executed",
                           code, m.at - 1);
    }
    CD_TRY(cd_arena_check(arena, err, "a pickle of %zu bytes", byte_count));
    if (m.is_damaged || *value == NULL)
        return cd_fail(err, CDDP_E_CORRUPT, "a pickle that is cut or damaged at byte %zu of %zu",
                       m.at, m.count);
    return CDDP_OK;
}
