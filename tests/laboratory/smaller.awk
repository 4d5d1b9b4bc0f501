# SPDX-License-Identifier: Apache-2.0
# Every scenario that has one thing less than the one given, made from its text alone: awk -v out=DIR -f smaller.awk FILE
#
# A line less, a table less, an item of a list less, one parameter, rank, step or micro-step less, and the schedule without one
# deviation. Independent of the program that shrinks; the program judges the results. Writes DIR/<n>.toml; a schedule's string
# stands in the file itself.

function emit(text, n) { n = ++made; printf "%s", text > (out "/" n ".toml"); close(out "/" n ".toml") }

function joined(skip_from, skip_to, replaced, by, i, text) {
    text = ""
    for (i = 1; i <= NR; i++) {
        if (i >= skip_from && i <= skip_to) continue
        text = text (i == replaced ? by : line[i]) "\n"
    }
    return text
}

# Sizes and the model become smaller; without them their default would be larger.
function is_size(i) { return line[i] ~ /^(size|steps|micro_steps|samples|name|options|schema|title|string|chooser) *=/ && line[i] !~ /^name = / || is_model_name(i) }
function is_model_name(i) { return table[i] == "[model]" && line[i] ~ /^name *=/ }

function number_smaller(i, value) {
    value = line[i]; sub(/^[^=]*= */, "", value)
    if (value + 0 > 1) emit(joined(0, -1, i, key(i) " = " (value - 1)))
}
function key(i, k) { k = line[i]; sub(/ *=.*/, "", k); return k }

# options = "count=3,numel=2": each number one less; "list=a:1;b:2": each parameter out, wherever the list is given
function options_smaller(i, n, part, k, text, value, names, m, j, all) {
    text = line[i]; sub(/^[^"]*"/, "", text); sub(/"$/, "", text)
    n = split(text, part, ",")
    for (k = 1; k <= n; k++) {
        value = part[k]; sub(/^[^=]*=/, "", value)
        if (value ~ /^[0-9]+$/ && value > 1) { all = line[i]; sub(part[k], substr(part[k], 1, index(part[k], "=")) (value - 1), all); emit(joined(0, -1, i, all)) }
        if (part[k] ~ /^list=/) {
            m = split(value, names, ";")
            for (j = 1; j <= m && m > 1; j++) { sub(/:.*/, "", names[j]); emit(without_name(names[j])) }
        }
    }
}
function without_name(name, i, text, l) {
    text = ""
    for (i = 1; i <= NR; i++) {
        l = line[i]
        if (l ~ /options = "/) { gsub(name ":[^;,\"]*;", "", l); gsub(";" name ":[^;,\"]*", "", l) }
        text = text l "\n"
    }
    return text
}

# ready_order = ["a", "b"]
function items_smaller(i, n, part, k, j, text) {
    text = line[i]; sub(/^[^[]*\[/, "", text); sub(/\]$/, "", text)
    n = split(text, part, ", ")
    for (k = 1; k <= n && n > 1; k++) {
        text = ""
        for (j = 1; j <= n; j++) if (j != k) text = text (text != "" ? ", " : "") part[j]
        emit(joined(0, -1, i, key(i) " = [" text "]"))
    }
}

# "s1:Q2B1": capitals count fifo choices in base 26, then the option taken.
function letters(n, text) { text = ""; while (n > 0) { text = substr("ABCDEFGHIJKLMNOPQRSTUVWXYZ", n % 26 + 1, 1) text; n = int(n / 26) } return text }
function schedule_smaller(i, text, gap, taken, n, k, j, number, result) {
    text = line[i]; sub(/^[^"]*"s1:/, "", text); sub(/"$/, "", text)
    for (n = 0; text != ""; ) {
        number = 0
        while (text ~ /^[A-Z]/) { number = number * 26 + index("ABCDEFGHIJKLMNOPQRSTUVWXYZ", substr(text, 1, 1)) - 1; text = substr(text, 2) }
        gap[++n] = number
        match(text, /^(\([0-9]+\)|[0-9])/)
        taken[n] = substr(text, 1, RLENGTH)
        text = substr(text, RLENGTH + 1)
    }
    for (k = 1; k <= n; k++) {
        result = ""; number = 0
        for (j = 1; j <= n; j++) {
            if (j == k) { number = gap[j] + 1; continue }
            result = result letters(gap[j] + number) taken[j]; number = 0
        }
        emit(joined(0, -1, i, "string = \"s1:" result "\""))
    }
    decisions = n
}

/^\[/ { now = $0 }
{ line[NR] = $0; table[NR] = now }

END {
    for (i = 1; i <= NR; i++) {
        if (line[i] ~ /^\[\[/) {
            for (last = i; last < NR && line[last + 1] !~ /^\[/; last++) ;
            emit(joined(i, last))
        } else if (line[i] ~ /^[a-z_.]+ *=/) {
            if (!(table[i] !~ /^\[\[/ && is_size(i))) emit(joined(i, i))
            if (table[i] == "[world]" && key(i) == "size" || table[i] == "[train]" || table[i] == "[data]") number_smaller(i)
            if (table[i] == "[model]" && key(i) == "options") options_smaller(i)
            if (line[i] ~ /= \[/) items_smaller(i)
            if (table[i] == "[schedule]" && key(i) == "string") schedule_smaller(i)
        }
    }
    # Defaults are more than one as well: two ranks, three steps, two samples.
    text = joined(0, -1)
    if (text !~ /\[world\]\nsize/) emit(text "\n[world]\nsize = 1\n")
    if (text !~ /\[train\]/) emit(text "\n[train]\nsteps = 2\n")
    if (text !~ /\[data\]/) emit(text "\n[data]\nsamples = 1\n")
}
