// SPDX-License-Identifier: Apache-2.0
// Datasets of token sequences, and their options.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/data/token_file.h"
#include "tessera/text/tokenizer.h"

namespace tessera::data {

/// `data` of the configuration.
struct DataOptions {
  std::vector<std::string> train;
  json::Value sources;             ///< see mixture.h; null: none
  std::string mix_until = "last";  ///< see mixture.h
  std::vector<std::string> validation;
  std::vector<std::string> test;
  double validation_fraction = 0.0;
  /// For records: data.train is divided into `folds` parts, of which `fold` (from 1) is held out.
  std::optional<std::int64_t> folds;
  std::int64_t fold = 1;
  std::optional<std::int64_t> sequence_length;
  std::optional<std::int64_t> stride;
  std::string text_field = "text";
  bool pack = true;
  bool separate_documents = false;
  bool shuffle = true;
  bool drop_last = true;
  std::string invalid_utf8 = "refuse";
  // For tasks that read records.
  json::Value map;              ///< {"prompt": "question"}; null: none
  bool map_may_miss = false;    ///< not a key: records may lack fields of `map`, such as labels
  std::string format = "auto";  ///< the kind of records
  std::string on_bad_record = "stop";
  bool drop_duplicates = false;
  std::int64_t streaming = 0;  ///< files whose samples are shuffled together; 0: no streaming
  /// True if a part of data.train is held out for evaluations.
  [[nodiscard]] bool holds_out() const { return validation_fraction > 0.0 || folds.has_value(); }
  void describe(config::Fields& fields);
};

/// Samples of `length` tokens with one label each. The tensors are "input_ids" [T]; "labels" [T];
/// "attention_mask" [T], which a batch contains only if a sample is padded; and, if documents are
/// kept apart, "document_starts" [T]; all int64. Const methods can be called from any thread.
class TokenDataset : public Dataset {
 public:
  [[nodiscard]] std::string name() const override { return "token dataset"; }
  [[nodiscard]] std::vector<TensorSpec> tensors() const final;
  void read(std::int64_t index, SampleWriter& out) const final;
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const final { return length(); }

  [[nodiscard]] virtual std::int64_t length() const = 0;
  /// Writes `length` inputs, labels (already shifted: labels[t] follows inputs[t]; -100 where
  /// ignored) and mask (1 or 0). Returns whether the sample has padding.
  virtual bool get(std::int64_t index,
                   std::int64_t* input_ids,
                   std::int64_t* labels,
                   std::int64_t* mask) const = 0;
  /// True if the documents of a sample do not attend to each other; get() then ignores the label
  /// after an end of text.
  [[nodiscard]] virtual bool separates_documents() const { return false; }
  /// Writes, for each of `length` inputs, the position of its document's first token. Called only
  /// if documents are separate.
  virtual void document_starts(const std::int64_t* /*input_ids*/, std::int64_t* /*starts*/) const {}
};

/// Windows of the joined stream: window i has the tokens [i*stride, i*stride + length]; the last
/// one is only a label. [begin, end) is the range of the stream's tokens.
std::unique_ptr<TokenDataset> make_windows(std::shared_ptr<const TokenFile> tokens,
                                           std::int64_t begin,
                                           std::int64_t end,
                                           std::int64_t length,
                                           std::int64_t stride);
/// The same windows with separate documents, each of which ends with `end_of_text`.
std::unique_ptr<TokenDataset> make_packed_documents(std::unique_ptr<TokenDataset> windows,
                                                    std::int32_t end_of_text);
/// One document per sample, truncated or padded to `length` with end of text; labels of padding are
/// -100. Several end-of-text tokens at the end of a document count as one, its last label. No
/// document may consist only of them; see require_texts().
std::unique_ptr<TokenDataset> make_documents(std::shared_ptr<const TokenFile> tokens,
                                             std::int64_t first,
                                             std::int64_t last,
                                             std::int64_t length,
                                             std::int32_t pad_id);
/// Throws Error{Data} with `name` if one of the sequences [first, last) consists only of
/// end-of-text tokens.
void require_texts(const TokenFile& tokens,
                   const std::string& name,
                   std::int64_t first,
                   std::int64_t last,
                   std::int32_t end_of_text);

/// The conversion of sequences of tokens to the samples of a task.
struct TokenSamples {
  /// Makes samples from tokens, with the same number of samples; `training`: they are trained on
  /// and not evaluated. Empty: the tokens are the samples.
  std::function<std::unique_ptr<Dataset>(std::unique_ptr<TokenDataset> tokens, bool training)>
      make = {};
  std::uint64_t seed = 0;  ///< of the order, with data.streaming
  /// A sample is made from one document: with data.separate_documents, windows are
  /// WindowsOfDocuments, and not windows of several documents that do not see each other.
  bool of_one_document = false;
};

/// Opens (and first tokenizes if needed) the data that the options name and splits off the
/// validation tail. With data.streaming, `tokenizer` must outlive the datasets, and the reader must
/// not shuffle. Throws Error{Data} if there are fewer than `min_samples` samples.
Datasets open_datasets(const DataOptions& options,
                       const text::Tokenizer& tokenizer,
                       std::int64_t vocab_size,
                       std::int64_t sequence_length,
                       std::int64_t min_samples,
                       const TokenizeOptions& how,
                       const TokenSamples& samples = {});

/// Opens `names` in the way of data.validation; messages refer to them as `key`. Throws Error{Data}
/// if they give no sample; with `shorter`, returns one shorter sample if all tokens together are
/// fewer than `sequence_length`.
OpenedDataset open_dataset(const DataOptions& options,
                           const std::vector<std::string>& names,
                           const std::string& key,
                           const text::Tokenizer& tokenizer,
                           std::int64_t vocab_size,
                           std::int64_t sequence_length,
                           const TokenizeOptions& how,
                           bool shorter = false,
                           const TokenSamples& samples = {});

}  // namespace tessera::data
