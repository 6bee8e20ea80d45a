// SPDX-License-Identifier: Apache-2.0
// Generates texts for a file of prompts, in order; an interrupted run continues where it stopped.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tessera/engine/generate.h"

namespace tessera::cli {

struct PromptFile {
  std::string out;
  std::vector<std::string> prompts;
  std::size_t made = 0;  ///< of them, those whose texts `out` holds
  int returned = 1;      ///< texts of a beam search for each prompt
  int samples = 1;       ///< texts that are drawn for each prompt, the i-th with seed + i
  int at_once = 1;       ///< texts that are made together; no text depends on it
  bool quiet = false;
};

/// The {"prompt": text} of each line. Error{Data} for other lines, and for a file without one.
std::vector<std::string> read_prompts(const std::string& path);

/// Reads {"prompt": text} from each line of `in`. Lines that `out` holds already are kept when they
/// are those of the first prompts; a last one that was cut is removed. Error{Data} for damaged
/// lines, and where `out` belongs to other prompts. Before ranks start, since these would see what
/// the first of them writes.
PromptFile open_prompt_file(const std::string& in, const std::string& out);

/// Appends {"prompt", "text", "tokens", "ended"} to the file for each prompt that has no text yet,
/// flushed with each line; where a prompt has several texts, they are its "samples" or "beams".
/// Only the rank that `is_leader` writes.
void texts_of_file(engine::Generator& generator,
                   const engine::GenerateOptions& options,
                   const PromptFile& file,
                   bool is_leader);

}  // namespace tessera::cli
