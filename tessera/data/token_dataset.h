// SPDX-License-Identifier: Apache-2.0
// Datasets of token sequences, and the options that name them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
#include "tessera/config/json.h"
#include "tessera/data/dataset.h"
#include "tessera/data/token_file.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

/// `data` of the configuration.
struct DataOptions {
  std::vector<std::string> train;
  std::vector<std::string> validation;
  double validation_fraction = 0.0;
  std::optional<std::int64_t> sequence_length;
  std::optional<std::int64_t> stride;
  std::string text_field = "text";
  bool pack = true;
  bool separate_documents = false;
  bool shuffle = true;
  bool drop_last = true;
  std::string invalid_utf8 = "refuse";
  // Of tasks that read records.
  json::Value map;               ///< {"prompt": "question"}; null: none
  std::string format = "auto";   ///< the kind of records
  std::string on_bad_record = "stop";
  void describe(config::Fields& fields);
};

/// Samples of `length` tokens with a label for each: the tensors "input_ids" [T], "labels" [T] and
/// "attention_mask" [T], which a batch has only where a sample is padded, and, where documents are
/// kept apart, "document_starts" [T], all int64. Threads: const methods from any thread.
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
  /// Whether the documents of a sample do not attend to each other; get() then ignores the label
  /// that follows an end of text.
  [[nodiscard]] virtual bool separates_documents() const { return false; }
  /// Writes, for each of `length` inputs, the position of the first one of its document. Called
  /// only where documents are separate.
  virtual void document_starts(const std::int64_t* /*input_ids*/, std::int64_t* /*starts*/) const {}
};

/// Windows of the joined stream: window i is tokens [i*stride, i*stride + length], its last token
/// only a label. [begin, end) of the stream's tokens.
std::unique_ptr<TokenDataset> make_windows(std::shared_ptr<const TokenFile> tokens,
                                           std::int64_t begin,
                                           std::int64_t end,
                                           std::int64_t length,
                                           std::int64_t stride);
/// The same windows, with the documents in them kept apart: each ends with `end_of_text`.
std::unique_ptr<TokenDataset> make_packed_documents(std::unique_ptr<TokenDataset> windows,
                                                    std::int32_t end_of_text);
/// One document a sample, cut or padded to `length` with end of text; labels of padding are -100.
/// Ends of text at the end of a document count as one, its last label. Error{Data} for a document
/// of nothing else.
std::unique_ptr<TokenDataset> make_documents(std::shared_ptr<const TokenFile> tokens,
                                             std::int64_t first,
                                             std::int64_t last,
                                             std::int64_t length,
                                             std::int32_t pad_id);

/// Opens (tokenizing first where needed) what the options name and cuts off the validation tail.
/// Error{Data} for less data than `min_samples`.
Datasets open_datasets(const DataOptions& options,
                       const Tokenizer& tokenizer,
                       std::int64_t vocab_size,
                       std::int64_t sequence_length,
                       std::int64_t min_samples,
                       const TokenizeOptions& how);

/// Opens `names`, which messages call `key`, as data.validation is. Error{Data} where they make no
/// sample; with `shorter`, one that is short where all tokens are fewer than `sequence_length`.
OpenedDataset open_dataset(const DataOptions& options,
                           const std::vector<std::string>& names,
                           const std::string& key,
                           const Tokenizer& tokenizer,
                           std::int64_t vocab_size,
                           std::int64_t sequence_length,
                           const TokenizeOptions& how,
                           bool shorter = false);

}  // namespace tessera::data
