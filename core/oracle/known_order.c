/* SPDX-License-Identifier: Apache-2.0 */
/* Every order is a tree over the members; float addition commutes, so only the tree matters. */
#include "core/oracle/known_order.h"

#include "cddp/tensor.h"
#include "core/oracle/numbers.h"

#include <string.h>

/* The last five are MPI's, which names them in its backend. */
static cd_order_kind find(const char *name, size_t length)
{
    static const struct {
        const char *name;
        cd_order_kind kind;
    } rows[] = {{"flat", CD_ORDER_IN_RANK_ORDER},
                {"ring", CD_ORDER_RING},
                {"gloo_ring", CD_ORDER_SEGMENTED_RING},
                {"halving_doubling", CD_ORDER_HALVING},
                {"binomial_tree", CD_ORDER_BINOMIAL},
                {"double_tree", CD_ORDER_DOUBLE_TREE},
                {"two_level", CD_ORDER_NODES},
                {"hfreduce", CD_ORDER_NODES},
                {"recursive_doubling", CD_ORDER_DOUBLING},
                {"linear", CD_ORDER_BACKWARDS},
                {"upward_ring", CD_ORDER_UPWARD_RING},
                {"shifted_ring", CD_ORDER_SHIFTED_RING}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strlen(rows[i].name) == length && memcmp(rows[i].name, name, length) == 0)
            return rows[i].kind;
    return CD_ORDER_UNKNOWN;
}

void cd_orders_read(cd_orders *orders, const char *algorithms)
{
    cd_orders *o = orders;
    o->count = 0;
    for (const char *at = algorithms; at != NULL && *at != '\0';) {
        const size_t length = strcspn(at, "|");
        const cd_order_kind kind = find(at, length);
        if (kind == CD_ORDER_UNKNOWN || o->count == CD_ORDER_COUNT) {
            o->count = 0;
            return;
        }
        o->kinds[o->count++] = kind;
        at += length + (at[length] == '|');
    }
}

/* Nodes are of a width that only the plan of a simulated network has. */
void cd_orders_get_all(cd_orders *orders)
{
    orders->count = 0;
    for (int kind = CD_ORDER_UNKNOWN + 1; kind < CD_ORDER_COUNT; kind++)
        if (kind != CD_ORDER_NODES) orders->kinds[orders->count++] = (cd_order_kind)kind;
}

static double add(const cd_ordered_sum *s, double a, double b)
{
    return cd_dtype_round(s->dtype, (double)((float)a + (float)b));
}

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

static double operand(const cd_ordered_sum *s, uint32_t member, int64_t element)
{
    const int64_t stride = s->stride > 1 ? s->stride : 1;
    return s->operands[(int64_t)member * divide_up(s->numel, stride) + element / stride];
}

static double in_rank_order(const cd_ordered_sum *s, uint32_t first, uint32_t end, int64_t element)
{
    double sum = operand(s, first, element);
    for (uint32_t m = first + 1; m < end; m++) sum = add(s, sum, operand(s, m, element));
    return sum;
}

static double backwards(const cd_ordered_sum *s, int64_t element)
{
    double sum = operand(s, s->members - 1, element);
    for (uint32_t m = s->members - 1; m-- > 0;) sum = add(s, sum, operand(s, m, element));
    return sum;
}

/* ---- rings ---- */

/* A chunk starts at the member before its owner, and goes backwards through all of them. */
static double around(const cd_ordered_sum *s, uint32_t owner, int64_t element)
{
    const uint32_t n = s->members;
    uint32_t m = (owner + n - 1) % n;
    double sum = operand(s, m, element);
    for (uint32_t k = 1; k < n; k++) {
        m = (m + n - 1) % n;
        sum = add(s, sum, operand(s, m, element));
    }
    return sum;
}

/* Gloo cuts a buffer into segments of at most 1 MiB, at least two per member and the same number
** for each; a segment is whole elements. */
static int64_t segmented_chunk(const cd_ordered_sum *s)
{
    const int64_t n = s->members, width = (int64_t)cddp_dtype_bytes(s->dtype), most = 1 << 20;
    const int64_t bytes = s->numel * width;
    int64_t segments = divide_up(bytes, most);
    if (segments < 2 * n) segments = 2 * n;
    segments = divide_up(segments, n) * n;
    return divide_up(divide_up(bytes, segments), width) * (segments / n);
}

static uint32_t owner_of(const cd_ordered_sum *s, int64_t element)
{
    const int64_t n = s->members;
    const int64_t chunk = s->scatters                           ? s->numel / n
                          : s->order == CD_ORDER_SEGMENTED_RING ? segmented_chunk(s)
                                                                : divide_up(s->numel, n);
    return (uint32_t)(chunk > 0 ? element / chunk % n : 0);
}

static double upward(const cd_ordered_sum *s, uint32_t first, int64_t element)
{
    const uint32_t n = s->members;
    double sum = operand(s, first, element);
    for (uint32_t k = 1; k < n; k++) sum = add(s, sum, operand(s, (first + k) % n, element));
    return sum;
}

/* Whose chunk an element is, where the first ones have one element more. */
static uint32_t early_owner_of(const cd_ordered_sum *s, int64_t element)
{
    const int64_t n = s->members, late = s->numel / n, more = s->numel % n;
    if (element < more * (late + 1)) return (uint32_t)(element / (late + 1));
    return (uint32_t)(more + (element - more * (late + 1)) / late);
}

/* The first member of the ring's order is the owner, or the one before it. */
static double upward_ring(const cd_ordered_sum *s, int64_t element)
{
    const uint32_t n = s->members, owner = early_owner_of(s, element);
    return upward(s, s->order == CD_ORDER_UPWARD_RING ? owner : (owner + n - 1) % n, element);
}

/* ---- halves ---- */

/* Members of one aligned block of 2^levels, those beyond the last power of two with the one that
** they gave theirs to. */
static double halves(const cd_ordered_sum *s, uint32_t first, uint32_t levels, uint32_t power,
                     int64_t element)
{
    if (levels > 0) {
        const uint32_t half = 1u << (levels - 1);
        return add(s, halves(s, first, levels - 1, power, element),
                   halves(s, first + half, levels - 1, power, element));
    }
    const double own = operand(s, first, element);
    return first + power < s->members ? add(s, own, operand(s, first + power, element)) : own;
}

static double halving(const cd_ordered_sum *s, int64_t element)
{
    uint32_t levels = 0;
    while ((UINT64_C(2) << levels) <= s->members) levels++;
    return halves(s, 0, levels, 1u << levels, element);
}

/* Place p of the power of two: of the first ones each stands for a pair of neighbours. */
static double doubles(const cd_ordered_sum *s, uint32_t place, uint32_t levels, int64_t element)
{
    if (levels > 0) {
        const uint32_t half = 1u << (levels - 1);
        return add(s, doubles(s, place, levels - 1, element),
                   doubles(s, place + half, levels - 1, element));
    }
    uint32_t power = 1;
    while (power <= s->members / 2) power *= 2;
    const uint32_t pairs = s->members - power;
    if (place >= pairs) return operand(s, place + pairs, element);
    return add(s, operand(s, 2 * place, element), operand(s, 2 * place + 1, element));
}

static double doubling(const cd_ordered_sum *s, int64_t element)
{
    uint32_t levels = 0;
    while ((UINT64_C(2) << levels) <= s->members) levels++;
    return doubles(s, 0, levels, element);
}

/* ---- trees ---- */

/* A member adds those at distance 1, 2, 4 … behind it, each with all behind that one. */
static double binomial(const cd_ordered_sum *s, uint32_t member, int64_t element)
{
    double sum = operand(s, member, element);
    for (uint64_t distance = 1; (member & distance) == 0 && member + distance < s->members;
         distance <<= 1)
        sum = add(s, sum, binomial(s, member + (uint32_t)distance, element));
    return sum;
}

/* A node's place in the first tree, whose leaves are odd and whose top is 0; in the second one the
** places are mirrored, or of an odd number of nodes shifted by one. */
static int64_t node_at(int64_t place, int64_t nodes, bool is_second)
{
    if (!is_second) return place;
    return nodes % 2 == 0 ? nodes - 1 - place : (place + 1) % nodes;
}

/* Place p has the bit 2^k as its lowest. Below it hang p - 2^(k-1), and p + 2^(k-1) or, where that
** is behind the end, the first of p + 2^(k-2), p + 2^(k-3) … that is not. Below place 0 hangs the
** largest power of two. */
static double double_tree(const cd_ordered_sum *s, int64_t place, int64_t nodes, int64_t element)
{
    const uint32_t width =
        s->order == CD_ORDER_NODES && s->ranks_per_node > 0 ? s->ranks_per_node : 1;
    const bool is_second = element >= s->numel / 2;
    const uint32_t leader = (uint32_t)node_at(place, nodes, is_second) * width;
    const uint32_t end = s->members - leader > width ? leader + width : s->members;
    double sum = in_rank_order(s, leader, end, element);
    if (place == 0) {
        int64_t top = 1;
        while (2 * top < nodes) top *= 2;
        return nodes > 1 ? add(s, sum, double_tree(s, top, nodes, element)) : sum;
    }
    int64_t step = (place & -place) / 2;
    if (step > 0) sum = add(s, sum, double_tree(s, place - step, nodes, element));
    while (step > 0 && place + step >= nodes) step /= 2;
    if (step > 0) sum = add(s, sum, double_tree(s, place + step, nodes, element));
    return sum;
}

/* ---- the sum ---- */

static double sum_of(const cd_ordered_sum *s, int64_t element)
{
    const int64_t width =
        s->order == CD_ORDER_NODES && s->ranks_per_node > 0 ? s->ranks_per_node : 1;
    switch (s->order) {
    case CD_ORDER_IN_RANK_ORDER:
        return in_rank_order(s, 0, s->members, element);
    case CD_ORDER_BACKWARDS:
        return backwards(s, element);
    case CD_ORDER_HALVING:
        return halving(s, element);
    case CD_ORDER_DOUBLING:
        return doubling(s, element);
    case CD_ORDER_BINOMIAL:
        return binomial(s, 0, element);
    case CD_ORDER_DOUBLE_TREE:
    case CD_ORDER_NODES:
        return double_tree(s, 0, divide_up(s->members, width), element);
    case CD_ORDER_UPWARD_RING:
    case CD_ORDER_SHIFTED_RING:
        return upward_ring(s, element);
    case CD_ORDER_RING:
    case CD_ORDER_SEGMENTED_RING:
    case CD_ORDER_UNKNOWN:
    case CD_ORDER_COUNT:
        break;
    }
    return around(s, owner_of(s, element), element);
}

double cd_ordered_sum_get(const cd_ordered_sum *sum, int64_t element)
{
    const double x = sum_of(sum, element);
    if (!sum->averages) return x;
    return cd_dtype_round(sum->dtype, x / (double)sum->members);
}
