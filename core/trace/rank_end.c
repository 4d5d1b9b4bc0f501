/* SPDX-License-Identifier: Apache-2.0 */
#include "core/trace/rank_end.h"

#include "core/base/os.h"

#include <stdio.h>
#include <string.h>

/* What worlds and recordings say of an end that has no code. */
static const char *find_said(const char *text)
{
    static const struct {
        const char *said, *words;
    } rows[] = {{"its launcher was killed", "ended when its launcher was killed"},
                {"never reported", "never reported"},
                {"or stood still", "died or stood still (SIGSTOP)"},
                {"closed its recording", "closed its recording before the end"},
                {"was killed by", "was killed"}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (strstr(text, rows[i].said) != NULL) return rows[i].words;
    return NULL;
}

const char *cd_rank_end_words(int64_t end, int64_t detail, const char *text)
{
    const bool has_text = text != NULL && text[0] != '\0';
    const char *said = detail == 0 && has_text ? find_said(text) : NULL;
    if (end == CDDP_RANK_HUNG) return "did not return";
    if (end == CDDP_RANK_INTERRUPTED) return "was interrupted";
    if (end == CDDP_RANK_KILLED && detail == CD_RANK_STOPPED) return "stood still (SIGSTOP)";
    if (said != NULL) return said;
    if (end == CDDP_RANK_KILLED) return detail > 0 || !has_text ? "was killed" : "died";
    if (end != CDDP_RANK_CRASHED) return "ended";
    return detail == 0 ? "left with exit code 0" : detail <= 128 ? "exited" : "crashed";
}

void cd_rank_end_print(const cddp_rank_result *r, char *text, size_t text_bytes)
{
    const char *words = cd_rank_end_words(r->end, r->detail, r->error.message);
    const int detail = (int)r->detail;
    if (r->end == CDDP_RANK_KILLED && detail > 0 && detail != CD_RANK_STOPPED)
        snprintf(text, text_bytes, "%s (signal %d)", words, detail);
    else if (r->end == CDDP_RANK_CRASHED && detail > 128 && detail < 160)
        snprintf(text, text_bytes, "%s (signal %d)", words, detail - 128);
    else if (r->end == CDDP_RANK_CRASHED && detail > 0)
        snprintf(text, text_bytes, "%s (exit code %d)", words, detail);
    else
        snprintf(text, text_bytes, "%s", words);
}

bool cd_rank_end_is_from_outside(const cddp_rank_result *r)
{
    if (r->end != CDDP_RANK_KILLED) return false;
    if (r->detail == CD_RANK_STOPPED) return true;
    return r->detail != 0 ? cd_os_signal_is_from_outside((int)r->detail)
                          : strstr(r->error.message, "its launcher was killed by") != NULL;
}
