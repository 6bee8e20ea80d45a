// SPDX-License-Identifier: Apache-2.0
// Text generation: the prompt is processed at once, then one token at a time with the KV cache.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/engine/logits_rules.h"
#include "tessera/models/family.h"
#include "tessera/ops/sampler.h"
#include "tessera/parallel/executor.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {

/// When beam search ends. Full: as soon as there are as many finished sequences as beams.
/// Heuristic: when no beam has a better score at its present length. Never: when no beam can get a
/// better score at any length.
enum class EarlyStopping : std::uint8_t { Full, Heuristic, Never };

struct GenerateOptions {
  std::int64_t max_new_tokens = 100;
  ops::SamplerOptions sampler;
  std::uint64_t seed = 1234;
  bool ignore_eos = false;         ///< continue after end of text, which is then never generated
  std::vector<std::int32_t> ends;  ///< ids that are end of text; empty: the tokenizer's ends()
  /// If one of these rules is set, temperature, top-k and top-p also follow transformers, which
  /// keeps tokens with the same logit as the k-th.
  LogitsRules rules;
  std::vector<std::int32_t> stop_ids;     ///< end a sequence as end of text does
  std::vector<std::string> stop_strings;  ///< the text ends before the first of them
  /// If false, the text omits special tokens, as transformers does with skip_special_tokens. Stop
  /// strings are found in special tokens in both cases.
  bool show_special = false;
  /// Number of the adapter that is used, of a model with several (add_adapters()); -1: the base.
  int adapter = -1;
  // Only run_beams() uses the following fields.
  int beams = 1;
  double length_penalty = 1.0;  ///< scores are divided by length to this power
  EarlyStopping early_stopping = EarlyStopping::Heuristic;
};

/// The result of a call.
struct Generated {
  std::vector<std::int32_t> tokens;  ///< new tokens, without the end of text that stopped it
  std::string text;    ///< their bytes, without a stop string, what follows it, and special tokens
  bool ended = false;  ///< ended by end of text, or by another stop token or string
  double prompt_s = 0.0, decode_s = 0.0;
};

/// Generates sequences that continue a prompt or, with an encoder-decoder model, answer it; an
/// answer begins with the decoder's start token and may have any length. Used only on the rank's
/// own thread. Cost: one forward of the prompt, then for each token one forward of a single
/// position, which reads the weights once for all sequences generated together. When max_positions
/// is reached, the last half of the sequence is processed again. The tokens that a model trained by
/// prefix_lm processes at once are a prefix: they see each other in both directions.
class Generator {
 public:
  Generator(parallel::Executor& executor,
            const text::Tokenizer& tokenizer,
            const models::Resolved& model);
  /// The ids of a prompt: Tokenizer::encode_prompt(), followed for an encoder by end of text.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view prompt) const;
  /// Continues `prompt` (an empty one starts from end of text). `on_text` receives the generated
  /// text as valid UTF-8: bytes of an incomplete character are held back until the next token;
  /// invalid bytes become U+FFFD.
  Generated run(std::string_view prompt,
                const GenerateOptions& options,
                const std::function<void(std::string_view)>& on_text);
  /// The same on token ids.
  Generated run_ids(std::vector<std::int32_t> ids,
                    const GenerateOptions& options,
                    const std::function<void(std::int32_t)>& on_token);
  /// Generates `count` continuations of one prompt together; the i-th draws with seed + i. Times
  /// cover all of them.
  std::vector<Generated> run_samples(std::vector<std::int32_t> ids,
                                     const GenerateOptions& options,
                                     int count);
  /// A request for a sequence: the ids of its prompt, its random seed, and the number of its
  /// adapter.
  struct Asked {
    std::vector<std::int32_t> prompt;
    std::uint64_t seed = 0;
    int adapter = -1;
  };
  /// Generates sequences for prompts of any lengths, at most `at_once` of them together: when one
  /// ends, the next begins. Each equals the result of run_ids() for its prompt, seed
  /// and adapter (those of `options` are not used). `on_text` receives each with its number, in the
  /// order in which they end. Cost: one forward of each prompt alone, then for each token one
  /// forward of a single position of all sequences together, whose keys and values lie in pages, so
  /// that nothing is padded.
  void run_prompts(const std::vector<Asked>& asked,
                   const GenerateOptions& options,
                   int at_once,
                   const std::function<void(std::size_t number, Generated made)>& on_text);
  /// Beam search: returns the `count` best sequences of options.beams, best first, with their
  /// scores: the sum of log-probabilities divided by length^length_penalty. The rules act on
  /// log-probabilities, as in transformers. A sequence is finished by the token that completes a
  /// stop string, which counts in its score and length; its text ends before the string. Prompt and
  /// answer must fit into a decoder's positions.
  /// Cost: one forward of the prompt for each beam (also of an encoder), then for each token one
  /// forward of a single position of all beams, and a copy of the KV caches of beams that are
  /// reordered. Throws Error{Config} for contradictory options.
  struct Beam {
    Generated made;
    double score = 0.0;
  };
  std::vector<Beam> run_beams(const std::vector<std::int32_t>& ids,
                              const GenerateOptions& options,
                              int count);

 private:
  struct Text;
  struct Cached;
  std::vector<Generated> make(std::vector<std::int32_t> ids,
                              const GenerateOptions& options,
                              int count,
                              const std::function<void(std::int32_t)>& on_token);
  /// Returns a sequence without generated tokens. Checks the prompt.
  [[nodiscard]] Text begun(std::vector<std::int32_t> prompt, std::uint64_t seed) const;
  /// Returns the number of positions that a sequence may have before its beginning is dropped.
  [[nodiscard]] std::int64_t room() const;
  /// Keeps the part of the sequence that will be processed from position 0, and sets the capacity
  /// of its cache.
  void begin_window(Text& text, const GenerateOptions& options, nn::StepContext& context) const;
  /// Chooses the next token of a sequence.
  void take(Text& text, const at::Tensor& logits_V, const GenerateOptions& options) const;
  /// Processes a sequence alone, and chooses its next token.
  void read_alone(Text& text, const GenerateOptions& options, Cached& cached);
  /// Chooses the next token of sequences that have been processed.
  void go_on(const std::vector<Text*>& texts, const GenerateOptions& options, Cached& cached);
  [[nodiscard]] std::vector<std::int32_t> ends(const GenerateOptions& options) const;
  /// Returns true if the token is omitted from the generated text.
  [[nodiscard]] bool hides(std::int32_t id, const GenerateOptions& options) const;
  void check_prompt(const std::vector<std::int32_t>& ids) const;
  [[nodiscard]] std::int64_t vocabulary() const;
  /// True if generated sequences answer the prompt instead of continuing it.
  [[nodiscard]] bool answers() const { return model_.trunk.output.target.has_value(); }
  /// The tokens with which a generated sequence begins.
  [[nodiscard]] std::vector<std::int32_t> first_tokens(
      const std::vector<std::int32_t>& prompt) const;
  /// The last `tokens` of each sequence; `reads`: they are the prompt, and an encoder processes it.
  [[nodiscard]] nn::Batch batch_of(const std::vector<std::int32_t>& prompt,
                                   const std::vector<std::vector<std::int32_t>>& texts,
                                   std::size_t tokens,
                                   bool reads) const;
  /// `adapters`: that of each row; empty: that of the options.
  at::Tensor next_logits(nn::Batch batch,
                         nn::StepContext& context,
                         const GenerateOptions& options,
                         std::vector<std::int64_t> adapters = {});
  /// Ids that end a text.
  [[nodiscard]] std::vector<std::int32_t> ends_of_text(const GenerateOptions& options) const;
  parallel::Executor& executor_;
  const text::Tokenizer& tokenizer_;
  const models::Resolved& model_;
};

}  // namespace tessera::engine
