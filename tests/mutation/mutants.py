# SPDX-License-Identifier: Apache-2.0
"""The mutants of one source: what libclang parses, changed in one place each.

A mutant is known by file, function, operator, text and an ordinal among those that agree in all four; never by a line, so
that lists of mutants outlive edits elsewhere in the file. Code inside a macro's argument is mutated where it is written;
code of a macro's body is not. Assertions are left alone: a weaker one cannot be noticed in a right program. So are the
arguments of cd_fail, which say what went wrong; the condition before it is mutated.
"""
import ctypes
import dataclasses
import re
import sys

from tree import ROOT, Absent, Mistake, digest, read_text

RELATIONS = {"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",)}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "*", "&": "|", "|": "&", "^": "|", "<<": ">>", ">>": "<<"}
COMPOUND = {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "%=": "*=", "&=": "|=", "|=": "&=", "^=": "|=",
            "<<=": ">>=", ">>=": "<<="}
LOGIC = {"&&": "||", "||": "&&"}
OPERATORS = {
    "relation": "a comparison takes its border along, leaves it out, or is turned round",
    "arithmetic": "an operation is replaced by its opposite",
    "logic": "and becomes or; or becomes and",
    "not": "a negation is left out",
    "condition": "a condition of if, while or ?: is negated",
    "constant": "a number becomes its successor, zero or its double; true becomes false",
    "enumerator": "an enumerator is replaced by its neighbour",
    "statement": "a call, an assignment, a break or a continue is dropped",
    "arguments": "two neighbouring arguments of one type change places",
    "return": "a function returns at its beginning: nothing, zero or true",
    "result": "a returned truth is negated, a returned number is one more",
}
LEFT_ALONE = ("CD_ASSERT", "cd_fail", "cd_error_fail")
SHOWN = 44  # characters of each side of an operation that its text shows


@dataclasses.dataclass(frozen=True)
class Mutant:
    file: str
    function: str
    operator: str
    ordinal: int
    text: str
    start: int
    end: int
    replacement: str

    @property
    def key(self):
        return (self.file, self.function, self.operator, self.ordinal, self.text)

    @property
    def id(self):
        return digest(*map(str, self.key))[:10]

    def apply(self, source):
        """The source with this mutant, as many lines as before: line numbers in objects stay what they were."""
        lost = source[self.start:self.end].count("\n") - self.replacement.count("\n")
        return source[:self.start] + self.replacement + "\n" * lost + source[self.end:]


def load_clang():
    """libclang's Python bindings, or a sentence that says what to install."""
    try:
        import clang.cindex as clang
        clang.Index.create()
        return clang
    except ImportError as error:
        raise Absent(f"{sys.executable} has no libclang (Debian package python3-clang, for /usr/bin/python3)") from error
    except Exception as error:
        raise Absent(f"libclang cannot be loaded: {error}") from error


class Parser:
    """Mutants of sources, by libclang."""

    def __init__(self, build=None):
        self.clang = load_clang()
        self.index = self.clang.Index.create()
        self.build = build

    def mutants(self, file):
        command = self.build.command(file)
        flags = [word for word in command[1:] if word.startswith(("-I", "-D", "-std", "-isystem"))]
        return self.of_text(file, read_text(ROOT / file), flags)

    def of_text(self, file, text, flags):
        unit = self.index.parse(str(ROOT / file), args=flags, unsaved_files=[(str(ROOT / file), text)])
        worst = [d for d in unit.diagnostics if d.severity >= self.clang.Diagnostic.Error]
        if worst:
            raise Mistake(f"libclang cannot parse {file}: {worst[0].spelling} in line {worst[0].location.line}")
        return Walk(self.clang, unit, file, text).mutants()


def squeeze(text):
    return re.sub(r"\s+", " ", text).strip()


def tail_of(text):
    text = squeeze(text)
    return text if len(text) <= SHOWN else "…" + text[1 - SHOWN:]


def head_of(text, shown=SHOWN):
    text = squeeze(text)
    return text if len(text) <= shown else text[:shown - 1] + "…"


class Walk:
    """One walk over the definitions of one source."""

    def __init__(self, clang, unit, file, source):
        self.kind = clang.CursorKind
        self.types = clang.TypeKind
        self.library = clang.conf.lib
        self.unit = unit
        self.file = file
        self.source = source
        # libclang counts bytes; Python counts characters.
        self.characters = None
        if not source.isascii():
            self.characters = [at for at, letter in enumerate(source) for _ in letter.encode()] + [len(source)]
        self.function = "-"
        self.found = {}

    def mutants(self):
        for cursor in self.unit.cursor.get_children():
            if not cursor.location.file or cursor.location.file.name != str(ROOT / self.file):
                continue
            if cursor.kind == self.kind.FUNCTION_DECL and cursor.is_definition():
                self.function = cursor.spelling
                if self.function.endswith("_audit"):
                    continue  # an audit asserts; it does nothing
                self.returns_early(cursor)
                self.visit(cursor)
            elif cursor.kind == self.kind.VAR_DECL:
                self.function = "-"
                self.visit(cursor)
        ordinals = {}
        mutants = []
        for (start, end, replacement), (function, operator, text) in sorted(self.found.items()):
            key = (function, operator, text)
            ordinals[key] = ordinals.get(key, 0) + 1
            mutants.append(Mutant(self.file, function, operator, ordinals[key], text, start, end, replacement))
        return mutants

    def offset(self, location):
        """Where a place is written in this file: inside a macro's argument, or where the macro is called."""
        file = ctypes.c_void_p()
        offset = ctypes.c_uint()
        self.library.clang_getFileLocation(location, ctypes.byref(file), None, None, ctypes.byref(offset))
        return offset.value if self.characters is None else self.characters[min(offset.value, len(self.characters) - 1)]

    def span(self, cursor):
        extent = cursor.extent
        return self.offset(extent.start), self.offset(extent.end)

    def add(self, operator, start, end, replacement, text):
        self.found.setdefault((start, end, replacement), (self.function, operator, squeeze(text)))

    def visit(self, cursor, parent=None):
        start, end = self.span(cursor)
        if self.source.startswith(LEFT_ALONE, start):
            return
        children = list(cursor.get_children())
        self.mutate(cursor, children, start, end)
        if cursor.kind == self.kind.COMPOUND_STMT and self.source[start:start + 1] == "{":
            for child in children:
                self.dropped(child)
        for child in children:
            self.visit(child, cursor)

    def mutate(self, cursor, children, start, end):
        kind = self.kind
        if cursor.kind in (kind.BINARY_OPERATOR, kind.COMPOUND_ASSIGNMENT_OPERATOR):
            self.operation(children)
        elif cursor.kind == kind.UNARY_OPERATOR:
            self.unary(children, start, end)
        elif cursor.kind in (kind.IF_STMT, kind.WHILE_STMT, kind.CONDITIONAL_OPERATOR):
            self.condition(cursor, children[0], start)
        elif cursor.kind == kind.INTEGER_LITERAL:
            self.integer(start, end)
        elif cursor.kind == kind.FLOATING_LITERAL:
            self.floating(start, end)
        elif cursor.kind == kind.DECL_REF_EXPR:
            self.enumerator(cursor, start, end)
        elif cursor.kind == kind.CALL_EXPR:
            self.arguments(cursor)
        elif cursor.kind == kind.RETURN_STMT and children:
            self.result(children[0], start)
        if cursor.kind in (kind.IF_STMT, kind.FOR_STMT, kind.WHILE_STMT):
            for child in children[1:] if cursor.kind == kind.IF_STMT else children[-1:]:
                self.dropped(child)

    def operation(self, children):
        if len(children) != 2:
            return
        (begin, left), (right, end) = self.span(children[0]), self.span(children[1])
        between = self.source[left:right]
        sign = between.strip()
        if left > right or not sign or len(sign) > 3:
            return
        if sign in RELATIONS:
            operator, others = "relation", RELATIONS[sign]
        elif sign in ARITHMETIC:
            operator, others = "arithmetic", (ARITHMETIC[sign],)
        elif sign in COMPOUND:
            operator, others = "arithmetic", (COMPOUND[sign],)
        elif sign in LOGIC:
            operator, others = "logic", (LOGIC[sign],)
        else:
            return
        at = left + between.index(sign)
        for other in others:
            self.add(operator, at, at + len(sign), other,
                     f"{tail_of(self.source[begin:left])} {sign} {head_of(self.source[right:end])} -> {other}")

    def unary(self, children, start, end):
        if not children:
            return
        inner, stop = self.span(children[0])
        text = self.source[start:end]
        if inner == start:
            sign = self.source[stop:end].strip()
            at = stop + self.source[stop:end].find(sign)
        else:
            sign = self.source[start:inner].strip()
            at = start
        if sign in ("++", "--"):
            other = "--" if sign == "++" else "++"
            self.add("arithmetic", at, at + 2, other, f"{head_of(text)} -> {other}")
        elif sign == "!":
            self.add("not", at, at + 1, "", f"{head_of(text)} -> {head_of(self.source[inner:stop])}")
        elif sign == "-" and inner > start:
            self.add("arithmetic", at, at + 1, "+", f"{head_of(text)} -> +")

    def simple(self, cursor, start, end):
        """True for a comparison and a negation, whose opposite another operator makes."""
        while cursor.kind == self.kind.UNEXPOSED_EXPR:
            inner = list(cursor.get_children())
            if len(inner) != 1:
                return False
            cursor = inner[0]
        if self.source.startswith("!", start):
            return True
        children = list(cursor.get_children())
        if cursor.kind == self.kind.BINARY_OPERATOR and len(children) == 2:
            return self.source[self.span(children[0])[1]:self.span(children[1])[0]].strip() in RELATIONS
        return False

    def condition(self, cursor, child, begin):
        start, end = self.span(child)
        word = {self.kind.IF_STMT: "if", self.kind.WHILE_STMT: "while"}.get(cursor.kind)
        if start >= end or (word and not self.source.startswith(word, begin)) or self.simple(child, start, end):
            return
        text = self.source[start:end]
        shown = head_of(text)
        self.add("condition", start, end, f"!({text})", f"{word or '?:'} ({shown}) -> !({shown})")

    def integer(self, start, end):
        text = self.source[start:end]
        if text in ("true", "false"):
            others = ["false" if text == "true" else "true"]
        elif re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*", text):
            value = int(re.sub(r"[uUlL]+$", "", text), 0 if text[:2] in ("0x", "0X") or text == "0" else 10)
            suffix = re.search(r"[uUlL]*$", text).group()
            others = [f"{value + 1}{suffix}"] + ([f"0{suffix}"] if value else [])
        else:
            return
        line = self.line(start, end)
        for other in others:
            self.add("constant", start, end, other, f"{line} -> {other}")

    def floating(self, start, end):
        text = self.source[start:end]
        if not re.fullmatch(r"[0-9.]+([eE][-+]?\d+)?[fF]?", text):
            return
        zero = float(text.rstrip("fF")) == 0
        other = "1.0" if zero else f"({text} * 2)"
        self.add("constant", start, end, other, f"{self.line(start, end)} -> {other}")

    def line(self, start, end):
        """What stands around a place in its line, the place itself marked."""
        first = self.source.rfind("\n", 0, start) + 1
        last = self.source.find("\n", end)
        before, after = self.source[first:start], self.source[end:last]
        left, right = " " * before[-1:].isspace(), " " * after[:1].isspace()
        return squeeze(f"{tail_of(before)}{left}⟨{self.source[start:end]}⟩{right}{head_of(after)}")

    def enumerator(self, cursor, start, end):
        target = cursor.referenced
        if target is None or target.kind != self.kind.ENUM_CONSTANT_DECL or self.source[start:end] != cursor.spelling:
            return
        names = [child.spelling for child in target.semantic_parent.get_children()]
        if len(names) < 2:
            return
        at = names.index(cursor.spelling)
        other = names[at + 1] if at + 1 < len(names) else names[at - 1]
        self.add("enumerator", start, end, other, f"{self.line(start, end)} -> {other}")

    def arguments(self, cursor):
        arguments = list(cursor.get_arguments())
        for one, two in zip(arguments, arguments[1:]):
            (a, b), (c, d) = self.span(one), self.span(two)
            if not a < b <= c < d or self.source[b:c].strip() != ",":
                continue
            left, right = self.source[a:b], self.source[c:d]
            same = one.type.get_canonical().spelling == two.type.get_canonical().spelling
            if same and squeeze(left) != squeeze(right):
                self.add("arguments", a, d, right + self.source[b:c] + left,
                         f"{cursor.spelling}({head_of(left)}, {head_of(right)}) -> ({head_of(right)}, {head_of(left)})")

    def dropped(self, cursor):
        kind = self.kind
        start, end = self.span(cursor)
        text = self.source[start:end]
        if not text or text.startswith(LEFT_ALONE + ("(void)", "{")) or text[-1:] == "}" or re.match(r"\w+_audit\(", text):
            return
        macro = cursor.kind in (kind.DO_STMT, kind.UNEXPOSED_STMT, kind.IF_STMT) and re.match(r"[A-Z]+_[A-Z_]+\(", text)
        call = cursor.kind in (kind.CALL_EXPR, kind.UNEXPOSED_EXPR) and re.match(r"[\w.>\[\]-]+\(", text)
        change = cursor.kind in (kind.BINARY_OPERATOR, kind.COMPOUND_ASSIGNMENT_OPERATOR, kind.UNARY_OPERATOR)
        jump = cursor.kind in (kind.BREAK_STMT, kind.CONTINUE_STMT)
        if macro or call or change or jump:
            if self.source[end:end + 1] == ";":
                self.add("statement", start, end, "", f"{head_of(text, 2 * SHOWN)}; -> dropped")

    def returns_early(self, cursor):
        body = [child for child in cursor.get_children() if child.kind == self.kind.COMPOUND_STMT]
        if not body:
            return
        at = self.span(body[0])[0] + 1
        if self.source[at - 1:at] != "{":
            return
        result = cursor.result_type
        name = result.spelling
        if result.kind == self.types.VOID:
            returns = ["return;"]
        elif name in ("bool", "_Bool"):
            returns = ["return false;", "return true;"]
        else:
            returns = [f"return ({name}){{0}};"]
        for text in returns:
            self.add("return", at, at, " " + text, f"{{ -> {text}")

    def result(self, child, begin):
        start, end = self.span(child)
        text = self.source[start:end]
        if not self.source.startswith("return", begin) or start >= end or re.fullmatch(r"\w+", text) and not text.islower():
            return
        name = child.type.spelling
        kind = child.type.get_canonical().kind
        shown = head_of(text)
        if name in ("bool", "_Bool") or kind == self.types.BOOL or self.truth(child, start, end):
            if text not in ("true", "false") and not self.simple(child, start, end):
                self.add("result", start, end, f"!({text})", f"return {shown} -> !")
        elif kind in (self.types.INT, self.types.UINT, self.types.LONG, self.types.ULONG, self.types.LONGLONG,
                      self.types.ULONGLONG) and not re.fullmatch(r"\d+", text):
            self.add("result", start, end, f"({text}) + 1", f"return {shown} -> + 1")

    def truth(self, cursor, start, end):
        """True for && and ||, whose type in C is int."""
        while cursor.kind in (self.kind.UNEXPOSED_EXPR, self.kind.PAREN_EXPR):
            inner = list(cursor.get_children())
            if len(inner) != 1:
                return False
            cursor = inner[0]
        children = list(cursor.get_children())
        if cursor.kind != self.kind.BINARY_OPERATOR or len(children) != 2:
            return self.source.startswith("!", start)
        sign = self.source[self.span(children[0])[1]:self.span(children[1])[0]].strip()
        return sign in LOGIC or sign in RELATIONS
