// SPDX-License-Identifier: Apache-2.0
// The texts that a model writes where samples have an answer to learn, together with that answer.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/data/dataset.h"
#include "tessera/engine/generate.h"
#include "tessera/tasks/text_scores.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {

/// A sample as a prompt and the tokens that answer it.
struct PromptAndAnswer {
  std::vector<std::int32_t> prompt, answer;
};
/// Splits a sample of "input_ids" and "labels" into prompt and answer. `answers`: an encoder reads
/// the ids that the mask keeps, and the labels are the answer. Otherwise the prompt ends before the
/// first learned token, and the answer is what is learned from there on without a gap. The answer
/// does not include the end of text; the prompt is empty if nothing is learned.
PromptAndAnswer prompt_of(const data::Dataset& dataset,
                          std::int64_t index,
                          bool answers,
                          std::int32_t end_of_text);

/// The texts of the first `count` samples; those without a prompt are left out. A text ends at end
/// of text, and at the special token that ends its sample's answer. Every rank makes all of them.
/// Cost: a generation for each. `told`: after each, the number that is done.
std::vector<tasks::WrittenText> write_texts(Generator& generator,
                                            const data::Dataset& dataset,
                                            const text::Tokenizer& tokenizer,
                                            std::int64_t count,
                                            bool answers,
                                            const GenerateOptions& options,
                                            const std::function<void(std::int64_t)>& told);

}  // namespace tessera::engine
