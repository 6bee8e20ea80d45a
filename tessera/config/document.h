// SPDX-License-Identifier: Apache-2.0
// Documentation of the options for users, generated from the same describe() that reads them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/fields.h"

namespace tessera::config {

/// One key with all its documentation; a section has only a path and a text.
struct KeyDoc {
  std::string path;     ///< "optimizer.type"
  std::string type;     ///< "integer", "list of strings", ...; empty: a section
  std::string initial;  ///< the default as JSON, or its rule as text
  std::string range;    ///< "at least 1 steps", "byte, gpt2"
  std::string text;
};

namespace detail {
std::vector<KeyDoc> document_fields(void (*describe)(void*, Fields&), void* options);
}

/// Returns all keys in the order of describe(); `options` holds the defaults.
template <class S>
std::vector<KeyDoc> document(S options) {
  return detail::document_fields([](void* s, Fields& f) { static_cast<S*>(s)->describe(f); },
                                 &options);
}

/// Returns a Markdown table for each section, under headings of level two.
std::string markdown(const std::vector<KeyDoc>& keys);
/// Returns the text with the pipe characters escaped that would end a cell of a table.
std::string markdown_cell(const std::string& text);
/// Returns the paths of all keys and sections.
std::vector<std::string> paths_of(const std::vector<KeyDoc>& keys);
/// Returns a few lines about one key for a terminal.
std::string explain(const KeyDoc& key);

}  // namespace tessera::config
