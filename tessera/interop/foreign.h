// SPDX-License-Identifier: Apache-2.0
// Trainings that other programs saved: found and checked when opened, read on demand.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/registry.h"
#include "tessera/config/json.h"
#include "tessera/interop/export.h"
#include "tessera/interop/weights.h"

namespace tessera::interop {

/// A training saved by another program. Tensors have that program's names and are in mapped files;
/// their `read` takes any range, from any thread.
struct Foreign {
  std::string what;            ///< "a DeepSpeed checkpoint (ZeRO stage 2, 2 ranks)"
  std::filesystem::path path;  ///< the folder or file to read
  std::size_t files = 0;
  std::vector<checkpoint::StreamedTensor>
      weights;  ///< in the highest precision available: fp32 masters, if any
  /// For each moment, such as "exp_avg", a tensor for each trained weight, with its name and shape;
  /// empty if there is no optimizer state.
  std::map<std::string, std::vector<checkpoint::StreamedTensor>> state;
  /// Number of updates made before the state of a weight began, if it did not begin with the first
  /// update.
  std::map<std::string, std::int64_t> began;
  std::int64_t step = 0;                ///< steps made, including skipped ones
  std::int64_t skipped = 0;             ///< of these, steps without an update
  std::optional<std::int64_t> samples;  ///< consumed samples; absent if not stored
  std::optional<double> lr;             ///< learning rate of the next update; absent if not stored
  json::Value loss_scaler;  ///< in the form of optim::LossScaler::restore(); null if there is none
  json::Value config;       ///< the program's own configuration; null if not stored
  /// Names of the module's parameters in torch's order, including frozen ones and tied names, but
  /// without buffers; empty if not stored.
  std::vector<std::string> parameters;
  /// Hugging Face's config.json for the weights, derived from the file; null if it is a separate
  /// file or does not exist.
  json::Value model_config;
  /// The other files of a Hugging Face folder (the tokenizer's) that the format contains: name and
  /// content. Empty if they are separate files or do not exist.
  std::vector<std::pair<std::string, std::string>> beside;
};

/// One program's format, in one file that ends with TESSERA_FOREIGN_FORMAT. At most one format may
/// recognize a path, except that a universal checkpoint may exist next to the checkpoint of a
/// stage.
struct ForeignFormat {
  /// Checks names only; cheap, never throws.
  bool (*recognises)(const std::filesystem::path& path);
  /// Throws Error{Format} for damage and Error{Unsupported} for a layout that cannot be read, each
  /// with its file.
  Foreign (*open)(const std::filesystem::path& path);
};
Registry<ForeignFormat>& foreign_formats();
#define TESSERA_FOREIGN_FORMAT(name, format)                  \
  static const bool TESSERA_UNIQUE(tessera_foreign_format_) = \
      ::tessera::interop::foreign_formats().add(name, format)

/// Opens a training at `path`; nothing if no format recognizes it. `only`: the name of the only
/// accepted format; empty: any.
std::optional<Foreign> open_foreign(const std::filesystem::path& path, std::string_view only = {});
bool is_foreign(const std::filesystem::path& path);
/// The name of the format of DeepSpeed's universal checkpoints.
inline constexpr std::string_view kUniversalFormat = "deepspeed-universal";

/// Elements [begin, begin + count) of a mapped tensor, in row-major order.
struct Run {
  Weight weight;
  std::int64_t begin = 0, count = 0;
};
/// Throws Error{Format} with `what` for a view that shows one element at several indices, such as
/// the result of expand(), because it may claim any size.
void require_every_element(const Weight& weight, const std::string& what);
/// Joins a tensor from consecutive pieces. Throws Error{Format} with `what` unless the runs have
/// one dtype, come from tensors without repeated elements, and form exactly `shape`.
checkpoint::StreamedTensor join(std::string name,
                                std::vector<std::int64_t> shape,
                                std::vector<Run> runs,
                                const std::string& what);
/// Concatenates parts along `dim` of `shape`; their other dims must be equal to it. The parts may
/// be strided views. `to`: the shape of the result, with the same elements in the same order.
/// Errors as join().
checkpoint::StreamedTensor concatenate(std::string name,
                                       const std::vector<std::int64_t>& shape,
                                       std::size_t dim,
                                       std::vector<Weight> parts,
                                       std::vector<std::int64_t> to,
                                       const std::string& what);
/// True if Hugging Face's modules store a tensor of this name as a buffer: a causal mask or the
/// frequencies of rotary positions. A state_dict does not distinguish buffers from parameters.
bool is_stored_buffer(std::string_view name);
/// The transposed matrix, as a view.
Weight transposed(Weight matrix);
/// A whole mapped tensor.
checkpoint::StreamedTensor stream(const Weight& weight, std::string name);

/// Tensors of a file by name.
class Named {
 public:
  explicit Named(std::vector<Weight> weights);
  [[nodiscard]] const Weight* find(const std::string& name) const;
  [[nodiscard]] bool has(const std::string& name) const { return find(name) != nullptr; }
  [[nodiscard]] const std::vector<Weight>& all() const { return weights_; }

 private:
  std::vector<Weight> weights_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

/// Another program's tensors by name, taken one after the other; a tensor that remains is an error.
class ConsumedWeights {
 public:
  ConsumedWeights(std::vector<Weight> weights, std::string what);
  [[nodiscard]] bool has(const std::string& name) const { return named_.has(name); }
  /// Throws Error{Format} if it is missing or has another shape.
  const Weight& take(const std::string& name, const std::vector<std::int64_t>& shape);
  void ignore(const std::string& name) { taken_.insert(name); }
  /// Throws Error{Unsupported} that names the remaining tensors.
  void finish() const;

 private:
  Named named_;
  std::set<std::string> taken_;
  std::string what_;
};

/// The member at "a.b.c"; nullptr if one is missing. Digits are indices of arrays.
const json::Value* at_path(const json::Value& value, std::string_view path);
/// The integer at that path, or `absent`.
std::int64_t integer_at(const json::Value& value, std::string_view path, std::int64_t absent);
/// The number of updates that an optimizer stored, as a tensor with one element or a number at
/// `path`; nothing if there is neither. Throws Error{Format} with `file` for an invalid count: a
/// fraction, less than 0, 2^53 or more, not a number, or a tensor type other than F32, F64 and I64.
std::optional<std::int64_t> count_at(const Named& tensors,
                                     const json::Value& values,
                                     const std::string& path,
                                     const std::filesystem::path& file);
/// Collects an optimizer's update count of each parameter; here a training has one count for all.
class UpdateCounts {
 public:
  /// nullopt: the optimizer keeps no count for the parameter.
  void add(const std::string& parameter, std::optional<std::int64_t> count);
  /// The count of the first parameter that has one.
  [[nodiscard]] std::optional<std::int64_t> first() const { return count_; }
  /// Describes two parameters with different counts; empty if all are equal.
  [[nodiscard]] const std::string& difference() const { return difference_; }

 private:
  std::string parameter_, difference_;
  std::optional<std::int64_t> count_;
};
/// The counts of torch's optimizer at `root`: those at "N.step". `names`: maps N as text to the
/// parameter, whose name is else N. Errors as count_at().
UpdateCounts counts_in(const Named& tensors,
                       const json::Value& values,
                       const std::string& root,
                       const std::map<std::string, std::string>& names,
                       const std::filesystem::path& file);
/// The number at that path, if it is one.
std::optional<double> number_at(const json::Value& value, std::string_view path);

}  // namespace tessera::interop
