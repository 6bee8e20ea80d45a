// SPDX-License-Identifier: Apache-2.0
// Samples of a token stream, and the order they are read in: a function of (seed, epoch), nothing
// to store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/config/fields.h"
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
  void describe(config::Fields& fields);
};

/// A fixed list of samples of `length` positions. Threads: const methods from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  [[nodiscard]] virtual std::int64_t length() const = 0;
  /// Writes `length` inputs, labels (already shifted: labels[t] follows inputs[t]; -100 where
  /// ignored) and mask (1 or 0). Returns whether the sample has padding.
  virtual bool get(std::int64_t index,
                   std::int64_t* input_ids,
                   std::int64_t* labels,
                   std::int64_t* mask) const = 0;
  /// Whether the documents of a sample do not see each other; get() then ignores what follows an
  /// end of text.
  [[nodiscard]] virtual bool separates_documents() const { return false; }
  /// Writes, for each of `length` inputs, the place of the first one of its document. Only where
  /// documents are separate.
  virtual void document_starts(const std::int64_t* /*input_ids*/, std::int64_t* /*starts*/) const {}
};
/// Windows of the joined stream: window i is tokens [i*stride, i*stride + length], its last token
/// only a label. [begin, end) of the stream's tokens.
std::unique_ptr<Dataset> make_windows(std::shared_ptr<const TokenFile> tokens,
                                      std::int64_t begin,
                                      std::int64_t end,
                                      std::int64_t length,
                                      std::int64_t stride);
/// The same windows, with the documents in them kept apart: each ends with `end_of_text`.
std::unique_ptr<Dataset> make_packed_documents(std::unique_ptr<Dataset> windows,
                                               std::int32_t end_of_text);
/// One document a sample, cut or padded to `length` with end of text; labels of padding are -100.
/// Ends of text at the end of a document count as one, its last label. Error{Data} for a document
/// of nothing else.
std::unique_ptr<Dataset> make_documents(std::shared_ptr<const TokenFile> tokens,
                                        std::int64_t first,
                                        std::int64_t last,
                                        std::int64_t length,
                                        std::int32_t pad_id);

/// The two datasets of a run.
struct Datasets {
  std::unique_ptr<Dataset> train, validation;  ///< validation may be null
  std::int64_t train_tokens = 0, validation_tokens = 0;
  TokenizeStats train_stats, validation_stats;  ///< of the sources as they were tokenized
  std::string fingerprint;  ///< of what is trained on: a resume with other data is refused
  std::string validation_fingerprint;  ///< of data.validation; empty without
};
/// Opens (tokenizing first where needed) what the options name and cuts off the validation tail.
/// Error{Data} for less data than `min_samples`.
Datasets open_datasets(const DataOptions& options,
                       const Tokenizer& tokenizer,
                       std::int64_t vocab_size,
                       std::int64_t sequence_length,
                       std::int64_t min_samples,
                       const TokenizeOptions& how);

/// All of some data as one dataset.
struct OpenedDataset {
  std::unique_ptr<Dataset> dataset;
  std::int64_t tokens = 0;
  TokenizeStats stats;
  std::string fingerprint;  ///< of the contents
};
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

/// Position i of epoch e -> sample. A permutation of [0, size) by a Feistel network with cycle
/// walking; the identity without shuffle. O(1), no memory.
class SampleOrder {
 public:
  SampleOrder(std::int64_t size, bool shuffle, std::uint64_t seed)
      : size_(size), shuffle_(shuffle), seed_(seed) {}
  [[nodiscard]] std::int64_t operator()(std::int64_t epoch, std::int64_t position) const;

 private:
  std::int64_t size_;
  bool shuffle_;
  std::uint64_t seed_;
};

/// Which samples each step trains on. Batch boundaries never cross an epoch: with drop_last the
/// rest is dropped, else trained at its own size. The state of a run is one number: samples
/// consumed (dropped ones included).
struct GlobalBatch {
  std::int64_t epoch = 0;
  std::int64_t first = 0;            ///< position in the epoch
  std::int64_t size = 0;             ///< samples
  std::int64_t consumed_before = 0;  ///< of the run: number of the first sample
  std::int64_t consumed_after = 0;
};
class BatchPlan {
 public:
  /// `size_at`: batch size of the update that begins after so many samples, where it grows up to
  /// `global_batch`.
  BatchPlan(std::int64_t dataset_size,
            std::int64_t global_batch,
            bool drop_last,
            std::function<std::int64_t(std::int64_t consumed)> size_at = {});
  /// The batch that starts when `consumed` samples of the run are behind us.
  [[nodiscard]] GlobalBatch at(std::int64_t consumed) const;
  [[nodiscard]] std::int64_t steps_per_epoch() const;  ///< of whole batches
  /// Steps until so many passes over the data are made, once `consumed` samples are behind us.
  [[nodiscard]] double steps_in(double epochs, std::int64_t consumed = 0) const;

 private:
  [[nodiscard]] std::int64_t batch_at(std::int64_t consumed) const {
    return size_at_ ? size_at_(consumed) : batch_;
  }
  std::int64_t size_, batch_;
  bool drop_last_;
  std::function<std::int64_t(std::int64_t)> size_at_;
};

}  // namespace tessera::data
