// SPDX-License-Identifier: Apache-2.0
// The data of TencentPretrain's preprocess.py: what becomes of a corpus, and what pretrain.py reads
// of it. A prepared corpus is a small file of JSON that names the text, because tessera tokenizes
// when a training starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/json.h"

namespace tessera::interop::tencentpretrain {

/// How the lines of a corpus become records.
enum class Lines : std::uint8_t {
  Sentences,  ///< sentences; a blank line ends a document: the corpus is read as it is
  Documents,  ///< a document a line: {"text"}
  Pairs,      ///< a source and a target between tabs: {"prompt", "completion"}
  Labelled,   ///< a label and one or two texts between tabs: {"label", "text_a", "text_b"}
  Records,    ///< an object of JSON a line
};

/// A processor of TencentPretrain, and the task that learns what it makes.
struct Processor {
  std::string_view name;  ///< of --data_processor
  Lines lines = Lines::Documents;
  std::string_view task;  ///< as JSON: {"type": ..., "params": ...}
};
/// nullptr: the processor is not built.
const Processor* find_processor(std::string_view name);
std::vector<std::string> processor_names();

/// The options of a preprocess.py command.
struct Corpus {
  std::string processor, data;
  std::int64_t sequence_length = 128, target_length = 128;
  std::int64_t copies = 1;  ///< --dup_factor
  double short_pairs = 0.1;
  bool dynamic = false, whole_words = false;
  json::Value tokenizer;  ///< tokenizer.* keys, or null
};

/// Writes `corpus` as the file `out`; its records go into OUT.jsonl unless the text is read as it
/// is. `json_lines`: a line of the text is an object with a field "text". Returns the number of
/// records, or nothing if the text is read as it is. Reads line by line. Throws Error{Data} with
/// file and line for a line that lacks a column, Error{Config} for an unknown processor, and
/// Error{Io}.
std::optional<std::int64_t> write_corpus(Corpus corpus,
                                         const std::filesystem::path& out,
                                         bool json_lines);

/// Reads a file of write_corpus(). Throws Error{Config} if it does not exist or is another file.
Corpus read_corpus(const std::filesystem::path& path);

/// The same as JSON, for the command line between the two.
json::Value to_json(const Corpus& corpus);
Corpus corpus_of(const json::Value& value, const std::string& name);

}  // namespace tessera::interop::tencentpretrain
