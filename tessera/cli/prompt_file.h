// SPDX-License-Identifier: Apache-2.0
// Generates texts for a file of prompts, in order; an interrupted run continues where it stopped.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/cli/output_progress.h"
#include "tessera/config/json.h"
#include "tessera/engine/generate.h"

namespace tessera::cli {

struct PromptFile {
  std::string out;
  std::vector<std::string> prompts;
  std::vector<json::Value> others;  ///< the other members of each prompt's line, an object
  /// Number of blank lines before each prompt and after the last one, which `out` has too, so that
  /// its lines are those of the prompts.
  std::vector<std::size_t> blank_lines;
  std::vector<std::string> adapter_names;  ///< of the model; empty: it has none
  std::vector<int> adapters;               ///< that of each prompt; -1: the base
  MadeLines made;                          ///< the prompts whose texts are already in `out`
  OutputProgress progress;                 ///< of `out`
  int returned = 1;                        ///< number of beam search results per prompt
  int samples = 1;  ///< number of texts sampled per prompt, the i-th with seed + i
  int at_once = 1;  ///< number of texts generated together; no text depends on it
  bool quiet = false;
};

/// Returns the {"prompt": text} of each line. Throws Error{Data} for other lines, and for a file
/// without a prompt.
std::vector<std::string> read_prompts(const std::string& path);

/// Reads {"prompt": text} from each line of `in`. With adapters, a line may also name one of
/// `adapter_names`, as "adapter": name, or the base, as null; the others use the first. Existing
/// lines of `out` are kept if they belong to the first prompts, with their other members; an
/// incomplete last line is removed when the next one is written. A blank line has a blank one in
/// `out`. Throws Error{Data} for damaged lines, and if `out` belongs to other prompts, and
/// Error{Config} if it is `in`. Call it before ranks start, because they would see what the first
/// of them writes.
PromptFile open_prompt_file(const std::string& in,
                            const std::string& out,
                            std::vector<std::string> adapter_names = {});

/// Appends {"prompt", "text", "tokens", "ended"}, "adapter" if there are any, and the other members
/// of the prompt's line (add_members_of()) to the file for each prompt without a text, flushed
/// after each line; several texts of a prompt are its "samples" or "beams". Only the rank with
/// `is_leader` writes.
void texts_of_file(engine::Generator& generator,
                   const engine::GenerateOptions& options,
                   const PromptFile& file,
                   bool is_leader);

}  // namespace tessera::cli
