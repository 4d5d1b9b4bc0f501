/* SPDX-License-Identifier: Apache-2.0 */
/* Selectors: which ranks, steps or micro-steps something applies to, as text and as a question. */
#include "core/plan/keys.h"

#include "core/base/error.h"

#include <stdio.h>
#include <stdlib.h>

/* One term at *at: "2", "0-3" or "1%2". */
static bool parse_term(const char **at, cddp_selector *selector)
{
    char *end;
    const unsigned long first = strtoul(*at, &end, 10);
    unsigned long second = first;
    bool ok = **at >= '0' && **at <= '9' && first <= UINT32_MAX;
    const char joint = *end;
    if (ok && (joint == '-' || joint == '%')) {
        const char *digits = end + 1;
        second = strtoul(digits, &end, 10);
        ok = *digits >= '0' && *digits <= '9' && second <= UINT32_MAX &&
             (joint == '-' ? second >= first : second > first);
    }
    if (!ok || (*end != '\0' && *end != ',')) return false;
    const bool modular = joint == '%';
    const uint32_t i = selector->term_count++;
    selector->terms[i].first = modular ? 0 : (uint32_t)first;
    selector->terms[i].last = modular ? UINT32_MAX : (uint32_t)second;
    selector->terms[i].modulus = modular ? (uint32_t)second : 0;
    selector->terms[i].remainder = modular ? (uint32_t)first : 0;
    *at = *end == ',' ? end + 1 : end;
    return true;
}

cddp_status cd_selector_parse(const char *text, cddp_selector *selector, cddp_error *err)
{
    cddp_selector parsed = {0};
    for (const char *at = text; *at != '\0';) {
        if (parsed.term_count == CDDP_SELECTOR_TERMS_MAX) {
            return cd_fail(err, CDDP_E_CONFIG, "'%s' has more than %d terms", text,
                           CDDP_SELECTOR_TERMS_MAX);
        }
        if (!parse_term(&at, &parsed)) {
            return cd_fail(
                err, CDDP_E_CONFIG,
                "'%s' is not a selection: write 2, 0-3, 1%%2 (n mod 2 == 1) or a list of these",
                text);
        }
    }
    *selector = parsed;
    return CDDP_OK;
}

void cd_selector_print(const cddp_selector *selector, char *text, size_t text_bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < selector->term_count && used < text_bytes; i++) {
        const char *comma = i > 0 ? "," : "";
        char term[32];
        if (selector->terms[i].modulus != 0) {
            snprintf(term, sizeof term, "%u%%%u", selector->terms[i].remainder,
                     selector->terms[i].modulus);
        } else if (selector->terms[i].first == selector->terms[i].last) {
            snprintf(term, sizeof term, "%u", selector->terms[i].first);
        } else {
            snprintf(term, sizeof term, "%u-%u", selector->terms[i].first, selector->terms[i].last);
        }
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", comma, term);
    }
}

bool cddp_selector_has(const cddp_selector *selector, uint32_t number)
{
    for (uint32_t i = 0; i < selector->term_count; i++) {
        const uint32_t modulus = selector->terms[i].modulus;
        if (number >= selector->terms[i].first && number <= selector->terms[i].last &&
            (modulus == 0 || number % modulus == selector->terms[i].remainder))
            return true;
    }
    return selector->term_count == 0;
}
