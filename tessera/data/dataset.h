// SPDX-License-Identifier: Apache-2.0
// A dataset: a fixed list of samples, each of which consists of named tensors of any dtype and
// shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/base/dtype.h"
#include "tessera/data/token_file.h"

namespace tessera::data {

/// A tensor that every sample of a dataset has.
struct TensorSpec {
  std::string name;  ///< name by which the blocks of a model read it: "input_ids", "pixels"
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape = {};  ///< of one sample, all sizes above 0; empty: one number
  /// A batch contains it only if one of its samples needs it.
  bool optional = false;
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::size_t bytes() const;
  bool operator==(const TensorSpec&) const = default;
};

class SampleWriter;

/// A fixed list of samples. The i-th sample is always the same, on whichever rank. Samples become a
/// batch by stacking: a tensor of shape [...] becomes one of shape [B, ...]. Const methods can be
/// called from any thread.
class Dataset {
 public:
  virtual ~Dataset() = default;
  /// The dataset's name in messages.
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// The tensors of a sample, the same for all samples.
  [[nodiscard]] virtual std::vector<TensorSpec> tensors() const = 0;
  /// Writes every tensor of sample `index`, including optional ones. Random choices must be
  /// functions of `index` or of out.number().
  virtual void read(std::int64_t index, SampleWriter& out) const = 0;
  /// The length of a sample that is a sequence of tokens. If absent, a sample counts as one token
  /// in reports.
  [[nodiscard]] virtual std::optional<std::int64_t> sequence_length() const { return std::nullopt; }
  /// A tensor that read() does not write: the model computes it for every sample before the
  /// training, as the output of this name of its objective. F64.
  [[nodiscard]] virtual std::optional<TensorSpec> made_by_model() const { return std::nullopt; }
  /// The samples in an order that is the same in every epoch. Only datasets that shuffle themselves
  /// return another dataset than this one.
  [[nodiscard]] virtual const Dataset& in_fixed_order() const { return *this; }
  /// The files whose contents the fingerprint of the data leaves out, because read() reads them.
  [[nodiscard]] virtual std::vector<std::filesystem::path> files() const { return {}; }
  /// The index in in_fixed_order() of the sample that read() writes for `index` if
  /// SampleWriter::number() is `number`.
  [[nodiscard]] virtual std::int64_t fixed_index(std::int64_t index,
                                                 std::int64_t /*number*/) const {
    return index;
  }
};

/// Throws Error{Shape} if two tensors of the dataset have the same name, or a size is below 1.
void check_tensors(const Dataset& dataset);

/// The memory into which a dataset writes its samples: some samples of each tensor, one after the
/// other. Throws Error{Shape} that names the dataset and the tensor for an undeclared name, another
/// element type, another number of values, and a tensor that was not written. Used by one thread.
class SampleWriter {
 public:
  /// `tensors`: memory for each of dataset.tensors(). Both must outlive this.
  SampleWriter(const Dataset& dataset, std::vector<std::byte*> tensors);

  /// The memory of a tensor, to be filled completely. T is the element type: float for F32,
  /// std::int64_t for I64, std::uint16_t for the bits of F16 and BF16.
  template <class T>
  [[nodiscard]] std::span<T> tensor(std::string_view name) {
    const std::span<std::byte> room = room_of(name, dtype_of<T>());
    return {reinterpret_cast<T*>(room.data()), room.size() / sizeof(T)};
  }
  /// Copies all values of a tensor.
  template <class T>
  void set(std::string_view name, std::span<const T> values) {
    copy(name, dtype_of<T>(), std::as_bytes(values), sizeof(T));
  }
  template <class T>
  void set(std::string_view name, const std::vector<T>& values) {
    set(name, std::span<const T>(values));
  }
  /// Sets the only value of a tensor that is one number.
  template <class T>
  requires std::is_arithmetic_v<T>
  void set(std::string_view name, T value) { set(name, std::span<const T>(&value, 1)); }
  /// The number of the sample in the whole run (samples consumed before it) if it is read for
  /// training; else its index. Random choices that should differ between epochs are functions of
  /// it, so that they do not depend on layout or resume.
  [[nodiscard]] std::int64_t number() const { return number_; }
  /// Makes the batch contain an optional tensor, also for the other samples.
  void need(std::string_view name);

  // Methods for the reader of a batch.
  /// Lets the dataset write sample `index` into row `row`; `number`: see number().
  void read(std::int64_t index, std::int64_t row, std::int64_t number);
  [[nodiscard]] const std::vector<TensorSpec>& tensors() const { return specs_; }
  /// True if the batch contains tensor number `tensor`.
  [[nodiscard]] bool has(std::size_t tensor) const {
    return !specs_[tensor].optional || needed_[tensor];
  }

 private:
  template <class T>
  static constexpr DType dtype_of() {
    if constexpr (std::is_same_v<T, double>) return DType::F64;
    if constexpr (std::is_same_v<T, float>) return DType::F32;
    if constexpr (std::is_same_v<T, bool>) return DType::Bool;
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (std::is_integral_v<T> && sizeof(T) == 8) return kSigned ? DType::I64 : DType::U64;
    if constexpr (std::is_integral_v<T> && sizeof(T) == 4) return kSigned ? DType::I32 : DType::U32;
    if constexpr (std::is_integral_v<T> && sizeof(T) == 2) return kSigned ? DType::I16 : DType::U16;
    static_assert(std::is_arithmetic_v<T>, "tensors consist of numbers");
    return kSigned ? DType::I8 : DType::U8;
  }
  [[nodiscard]] std::size_t find(std::string_view name) const;
  std::span<std::byte> room_of(std::string_view name, DType dtype);
  void copy(std::string_view name,
            DType dtype,
            std::span<const std::byte> values,
            std::size_t element);

  const Dataset& dataset_;
  std::vector<TensorSpec> specs_;
  std::vector<std::byte*> tensors_;
  std::vector<bool> written_, needed_;
  std::int64_t index_ = 0, row_ = 0, number_ = 0;
};

/// One sample with its own memory.
class Sample {
 public:
  Sample(const Dataset& dataset, std::int64_t index);
  /// True if the sample has the tensor; an optional tensor only if the sample needs it.
  [[nodiscard]] bool has(std::string_view name) const;
  /// The values of a tensor. Throws Error{Shape} as SampleWriter does.
  template <class T>
  [[nodiscard]] std::span<const T> values(std::string_view name) {
    return writer_->tensor<T>(name);
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::unique_ptr<SampleWriter> writer_;
};

/// The datasets of a run. A program with its own dataset sets `train` and, to evaluate,
/// `validation` and `test`.
struct Datasets {
  std::unique_ptr<Dataset> train, validation, test;      ///< all but train may be null
  std::int64_t train_tokens = 0, validation_tokens = 0;  ///< 0 if they do not consist of tokens
  /// Statistics of the sources' tokenization.
  TokenizeStats train_stats, validation_stats;
  /// Fingerprint of the training data: a resume with other data is refused. Empty: not compared.
  std::string fingerprint;
  std::string validation_fingerprint;  ///< of data.validation; empty if there is none
  std::string test_fingerprint;        ///< of data.test; empty if there is none
};

/// One source of data, opened as one dataset.
struct OpenedDataset {
  std::unique_ptr<Dataset> dataset;
  std::int64_t tokens = 0;
  TokenizeStats stats;
  std::string fingerprint;  ///< of the contents
};

}  // namespace tessera::data
