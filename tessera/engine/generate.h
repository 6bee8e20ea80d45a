// SPDX-License-Identifier: Apache-2.0
// Text out of a model: the prompt is read at once, then one token at a time with the KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/tokenizer.h"
#include "tessera/engine/logits_rules.h"
#include "tessera/models/family.h"
#include "tessera/ops/sampler.h"
#include "tessera/parallel/executor.h"

namespace tessera::engine {

/// When beam search has enough: as soon as there are as many finished texts as beams; when no beam
/// is better than them at its present length; or when none can become better at any length.
enum class EarlyStopping : std::uint8_t { Full, Heuristic, Never };

struct GenerateOptions {
  std::int64_t max_new_tokens = 100;
  ops::SamplerOptions sampler;
  std::uint64_t seed = 1234;
  bool ignore_eos = false;  ///< go on after end of text, which is then never produced
  /// Where one of them is set, temperature, top-k and top-p have transformers' meaning too, which
  /// keeps equals of the k-th token.
  LogitsRules rules;
  std::vector<std::int32_t> stop_ids;     ///< they end a text as end of text does
  std::vector<std::string> stop_strings;  ///< the text ends before the first of them
  // The following fields are used by run_beams() alone.
  int beams = 1;
  double length_penalty = 1.0;  ///< scores are divided by length to this power
  EarlyStopping early_stopping = EarlyStopping::Heuristic;
};

/// What came of a call.
struct Generated {
  std::vector<std::int32_t> tokens;  ///< new ones, without the end of text that stopped it
  std::string text;                  ///< their bytes, without a stop string and what follows it
  bool ended = false;                ///< by end of text, or by what stops it
  double prompt_s = 0.0, decode_s = 0.0;
};

/// Makes texts that continue a prompt or, of a model whose decoder answers what its encoder reads,
/// that answer one: such a text begins with the decoder's start token and may have any length.
/// Threads: the rank's own. Cost: one forward of the prompt, then one of a single position a token,
/// which reads the weights once, however many texts are made together; when max_positions is full
/// the last half of the text is read anew.
class Generator {
 public:
  Generator(parallel::Executor& executor,
            const data::Tokenizer& tokenizer,
            const models::Resolved& model);
  /// The ids of a prompt: Tokenizer::encode_prompt(), and for an encoder the end of text behind
  /// them.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view prompt) const;
  /// Continues `prompt` (an empty one starts from end of text). `on_text` receives what was made as
  /// valid UTF-8: bytes of an unfinished character wait for the next token, invalid ones become
  /// U+FFFD.
  Generated run(std::string_view prompt,
                const GenerateOptions& options,
                const std::function<void(std::string_view)>& on_text);
  /// The same on token ids.
  Generated run_ids(std::vector<std::int32_t> ids,
                    const GenerateOptions& options,
                    const std::function<void(std::int32_t)>& on_token);
  /// `count` continuations of one prompt together; the i-th draws with seed + i. Times are those of
  /// all of them.
  std::vector<Generated> run_samples(std::vector<std::int32_t> ids,
                                     const GenerateOptions& options,
                                     int count);
  /// A text that is asked for: its prompt's ids, and what it draws with.
  struct Asked {
    std::vector<std::int32_t> prompt;
    std::uint64_t seed = 0;
  };
  /// Texts of prompts of any lengths, at most `at_once` of them together: where one ends, the next
  /// begins. Each is what run_ids() makes of its prompt with its seed (options.seed is not used).
  /// `on_text` receives each with its number, in the order in which they end. Cost: a forward of
  /// each prompt alone, then one of a single position of all texts together a token. Attention
  /// reads each text apart, so that nothing is padded.
  void run_prompts(const std::vector<Asked>& asked,
                   const GenerateOptions& options,
                   int at_once,
                   const std::function<void(std::size_t number, Generated made)>& on_text);
  /// Beam search: the `count` best texts of options.beams, best first, with their scores: the sum
  /// of log-probabilities divided by length^length_penalty. The rules act on log-probabilities, as
  /// in transformers. Prompt and text must fit into a decoder's positions. Cost: a forward of the
  /// prompt for each beam (an encoder reads it once for each), then one of a single position of all
  /// beams a token, and a copy of the KV caches of the beams that change places.
  /// Error{Config} for contradictory options.
  struct Beam {
    Generated made;
    double score = 0.0;
  };
  std::vector<Beam> run_beams(const std::vector<std::int32_t>& ids,
                              const GenerateOptions& options,
                              int count);

 private:
  struct Text;
  std::vector<Generated> make(std::vector<std::int32_t> ids,
                              const GenerateOptions& options,
                              int count,
                              const std::function<void(std::int32_t)>& on_token);
  /// A text of which nothing was made. Checks the prompt.
  [[nodiscard]] Text begun(std::vector<std::int32_t> prompt, std::uint64_t seed) const;
  /// Positions that a text may have before its beginning is forgotten.
  [[nodiscard]] std::int64_t room() const;
  /// Keeps of a text what will be read of it from position 0, and gives its cache room.
  void begin_window(Text& text, const GenerateOptions& options, nn::StepContext& context) const;
  /// Chooses the next token of a text.
  void take(Text& text, const at::Tensor& logits_V, const GenerateOptions& options) const;
  /// Reads a text alone, and makes its next token.
  void read_alone(Text& text, const GenerateOptions& options, nn::StepContext& context);
  /// Makes the next token of texts that have been read.
  void go_on(const std::vector<Text*>& texts,
             const GenerateOptions& options,
             nn::StepContext& context);
  [[nodiscard]] std::vector<std::int32_t> ends(const GenerateOptions& options) const;
  void check_prompt(const std::vector<std::int32_t>& ids) const;
  [[nodiscard]] std::int64_t vocabulary() const;
  /// Whether texts answer the prompt instead of continuing it.
  [[nodiscard]] bool answers() const { return model_.trunk.output.target.has_value(); }
  /// What texts begin with.
  [[nodiscard]] std::vector<std::int32_t> first_tokens(
      const std::vector<std::int32_t>& prompt) const;
  /// The last `tokens` of each text; `reads`: an encoder reads the prompt.
  [[nodiscard]] nn::Batch batch_of(const std::vector<std::int32_t>& prompt,
                                   const std::vector<std::vector<std::int32_t>>& texts,
                                   std::size_t tokens,
                                   bool reads) const;
  at::Tensor next_logits(const nn::Batch& batch, nn::StepContext& context, bool ignore_eos);
  parallel::Executor& executor_;
  const data::Tokenizer& tokenizer_;
  const models::Resolved& model_;
};

}  // namespace tessera::engine
