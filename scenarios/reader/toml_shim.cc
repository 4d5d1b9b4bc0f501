// SPDX-License-Identifier: Apache-2.0
// The only C++ of the reader: walks a toml++ document and tells what it finds. See toml_shim.h.
#include "scenarios/reader/toml_shim.h"

#define TOML_EXCEPTIONS 0
#define TOML_HEADER_ONLY 1
// Some malformed keys ("[.") meet assertions of the parser before its error: it goes on to the error without them.
#define TOML_ASSERT(expression) static_cast<void>(0)
#include <toml++/toml.h>

#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <vector>

namespace {

struct stopped {};

struct walk {
    const cd_toml_visitor &visitor;

    static std::string number_text(double value)
    {
        char text[40];
        std::snprintf(text, sizeof text, "%.17g", value);
        return text;
    }

    static cd_toml_kind scalar(const toml::node &node, std::string &text)
    {
        if (const auto *value = node.as_string()) {
            text = value->get();
            return CD_TOML_TEXT;
        }
        if (const auto *value = node.as_integer()) {
            text = std::to_string(value->get());
            return CD_TOML_INTEGER;
        }
        if (const auto *value = node.as_floating_point()) {
            text = number_text(value->get());
            return CD_TOML_NUMBER;
        }
        if (const auto *value = node.as_boolean()) {
            text = value->get() ? "true" : "false";
            return CD_TOML_FLAG;
        }
        text = "?";
        return CD_TOML_OTHER;
    }

    // An array of whole numbers and fractions is an array of numbers; any other mixture is none.
    static cd_toml_kind join(cd_toml_kind all, cd_toml_kind one)
    {
        const bool numeric = (all == CD_TOML_INTEGER || all == CD_TOML_NUMBER) &&
                             (one == CD_TOML_INTEGER || one == CD_TOML_NUMBER);
        return all == one ? all : numeric ? CD_TOML_NUMBER : CD_TOML_OTHER;
    }

    void tell_leaf(const std::string &path, const toml::node &node, const toml::source_region &at) const
    {
        std::vector<std::string> texts;
        cd_toml_leaf leaf{};
        if (const auto *array = node.as_array()) {
            leaf.is_array = true;
            for (std::size_t i = 0; i < array->size(); i++) {
                texts.emplace_back();
                const cd_toml_kind kind = scalar((*array)[i], texts.back());
                leaf.kind = i == 0 ? kind : join(leaf.kind, kind);
            }
        } else {
            texts.emplace_back();
            leaf.kind = scalar(node, texts.back());
        }
        std::vector<const char *> items;
        for (const std::string &text : texts) {
            items.push_back(text.c_str());
        }
        leaf.path = path.c_str();
        leaf.items = items.data();
        leaf.item_count = items.size();
        leaf.line = at.begin.line;
        leaf.column = at.begin.column;
        if (!visitor.leaf(visitor.context, &leaf)) {
            throw stopped{};
        }
    }

    void tell_table(const std::string &path, bool is_element, const toml::source_region &at) const
    {
        const cd_toml_table table{path.c_str(), is_element, at.begin.line, at.begin.column};
        if (!visitor.table(visitor.context, &table)) {
            throw stopped{};
        }
    }

    void visit(const std::string &prefix, const toml::table &table) const
    {
        for (const auto &[key, node] : table) {
            const std::string path = prefix.empty() ? std::string(key.str()) : prefix + "." + std::string(key.str());
            if (const auto *inner = node.as_table()) {
                tell_table(path, false, key.source());
                visit(path, *inner);
            } else if (node.is_array_of_tables()) {
                std::size_t index = 0;
                for (const toml::node &element : *node.as_array()) {
                    const std::string place = path + "[" + std::to_string(index++) + "]";
                    tell_table(place, true, element.source());
                    visit(place, *element.as_table());
                }
            } else {
                tell_leaf(path, node, key.source());
            }
        }
    }
};

void set_message(cd_toml_error *error, std::string_view text)
{
    const std::size_t length = text.size() < sizeof error->message - 1 ? text.size() : sizeof error->message - 1;
    std::memcpy(error->message, text.data(), length);
    error->message[length] = '\0';
}

} // namespace

extern "C" cd_toml_result cd_toml_parse(const char *text, size_t text_bytes, const cd_toml_visitor *visitor,
                                        cd_toml_error *error)
{
    try {
        toml::parse_result result = toml::parse(std::string_view(text, text_bytes));
        if (!result) {
            const toml::parse_error &failure = result.error();
            error->line = failure.source().begin.line;
            error->column = failure.source().begin.column;
            set_message(error, failure.description());
            return CD_TOML_SYNTAX;
        }
        walk{*visitor}.visit("", result.table());
        return CD_TOML_OK;
    } catch (const stopped &) {
        return CD_TOML_STOPPED;
    } catch (const std::bad_alloc &) {
        return CD_TOML_NO_MEMORY;
    } catch (...) {
        set_message(error, "the TOML parser failed");
        return CD_TOML_SYNTAX;
    }
}
