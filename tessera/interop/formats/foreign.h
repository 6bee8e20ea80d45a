// SPDX-License-Identifier: Apache-2.0
// Trainings that other programs saved: what is there, found and checked, read when it is asked for.
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
#include "tessera/interop/formats/export.h"
#include "tessera/interop/formats/weights.h"

namespace tessera::interop {

/// A training as another program left it. Tensors have that program's names and lie in mapped
/// files; their `read` takes any range, from any thread.
struct Foreign {
  std::string what;            ///< "a DeepSpeed checkpoint (ZeRO stage 2, 2 ranks)"
  std::filesystem::path path;  ///< the folder or file that is read
  std::size_t files = 0;
  std::vector<checkpoint::StreamedTensor>
      weights;  ///< as precise as they are there: fp32 masters, if any
  /// "exp_avg" -> a tensor for each trained weight, under its name and of its shape; empty where
  /// nothing of an optimizer is there.
  std::map<std::string, std::vector<checkpoint::StreamedTensor>> state;
  /// Updates made before the state of a weight began, where it began after the first of them.
  std::map<std::string, std::int64_t> began;
  std::int64_t step = 0;                ///< steps made, skipped ones included
  std::int64_t skipped = 0;             ///< of them, those that made no update
  std::optional<std::int64_t> samples;  ///< seen; nothing if it does not say
  std::optional<double> lr;             ///< of the next update; nothing if it does not say
  json::Value loss_scaler;  ///< as optim::LossScaler::restore() takes it; null without one
  json::Value config;       ///< the program's own configuration; null if it keeps none
  /// Names of the module's parameters as torch counts them, those that do not train and second
  /// names of a tensor too, but no buffers; empty where nothing says it.
  std::vector<std::string> parameters;
  /// Hugging Face's config.json for the weights: in the file's own words, or null where it lies
  /// beside them or nowhere.
  json::Value model_config;
  /// The other files of a Hugging Face folder that the format has words for, those of the
  /// tokenizer: name and content. Empty where they lie beside the weights or nowhere.
  std::vector<std::pair<std::string, std::string>> beside;
};

/// One program's format: one file that ends with TESSERA_FOREIGN_FORMAT. At most one of them may
/// recognise a path; but beside the checkpoint of a stage its universal form may lie.
struct ForeignFormat {
  bool (*recognises)(const std::filesystem::path& path);  ///< by names alone; cheap, never throws
  /// Error{Format} for damage, Error{Unsupported} for a layout that is not read, each with its
  /// file.
  Foreign (*open)(const std::filesystem::path& path);
};
Registry<ForeignFormat>& foreign_formats();
#define TESSERA_FOREIGN_FORMAT(name, format)            \
  static const bool tessera_foreign_format_registered = \
      ::tessera::interop::foreign_formats().add(name, format)

/// Opens whatever stands at `path`; nothing if no format recognises it. `only`: the name of the one
/// format that will do; empty: any.
std::optional<Foreign> open_foreign(const std::filesystem::path& path, std::string_view only = {});
bool is_foreign(const std::filesystem::path& path);
/// The name of the format of DeepSpeed's universal checkpoints.
inline constexpr std::string_view kUniversalFormat = "deepspeed-universal";

/// Elements [begin, begin + count) of a mapped tensor, in row-major order.
struct Run {
  Weight weight;
  std::int64_t begin = 0, count = 0;
};
/// Error{Format} naming `what` for a view that shows one element in several places, as expand()
/// makes them: it may claim any size.
void require_every_element(const Weight& weight, const std::string& what);
/// A tensor that lies in pieces, one after the other. Error{Format} naming `what` unless the runs
/// are of one type, of tensors without repeated elements, and make up `shape` exactly.
checkpoint::StreamedTensor join(std::string name,
                                std::vector<std::int64_t> shape,
                                std::vector<Run> runs,
                                const std::string& what);
/// Parts that lie side by side along `dim` of `shape`; each has the other dims of it. Dims of the
/// parts may be strided views. `to` is what the tensor is then called: the same elements in the
/// same order. Errors as join().
checkpoint::StreamedTensor concatenate(std::string name,
                                       const std::vector<std::int64_t>& shape,
                                       std::size_t dim,
                                       std::vector<Weight> parts,
                                       std::vector<std::int64_t> to,
                                       const std::string& what);
/// Whether Hugging Face's modules keep a tensor of this name beside their parameters: a causal mask
/// or the frequencies of rotary positions. A state_dict does not tell the two apart.
bool is_stored_buffer(std::string_view name);
/// The matrix with its dims exchanged: a view.
Weight transposed(Weight matrix);
/// The whole of a mapped tensor.
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

/// Another program's tensors by name, taken one after the other; what nobody takes is a mistake.
class ConsumedWeights {
 public:
  ConsumedWeights(std::vector<Weight> weights, std::string what);
  [[nodiscard]] bool has(const std::string& name) const { return named_.has(name); }
  /// Error{Format} where it is missing, or of another shape than `shape`.
  const Weight& take(const std::string& name, const std::vector<std::int64_t>& shape);
  void ignore(const std::string& name) { taken_.insert(name); }
  /// Error{Unsupported} names what is left.
  void finish() const;

 private:
  Named named_;
  std::set<std::string> taken_;
  std::string what_;
};

/// The member at "a.b.c"; nullptr where one of them is missing. Digits count items of arrays.
const json::Value* at_path(const json::Value& value, std::string_view path);
/// The whole number there, or `absent`.
std::int64_t integer_at(const json::Value& value, std::string_view path, std::int64_t absent);
/// The updates that an optimizer counted, as a tensor of one element or a number at `path`; nothing
/// where neither is there. Error{Format} naming `file` for what is no count: a fraction, less than
/// 0, 2^53 or more, no number, another type than F32, F64 and I64.
std::optional<std::int64_t> count_at(const Named& tensors,
                                     const json::Value& values,
                                     const std::string& path,
                                     const std::filesystem::path& file);
/// The updates that an optimizer counted of each parameter: a training here has one count of all.
class UpdateCounts {
 public:
  /// Nothing where the optimizer keeps none of the parameter.
  void add(const std::string& parameter, std::optional<std::int64_t> count);
  /// That of the first parameter that has one.
  [[nodiscard]] std::optional<std::int64_t> first() const { return count_; }
  /// Two parameters with their counts, where they differ; empty where all are the same.
  [[nodiscard]] const std::string& difference() const { return difference_; }

 private:
  std::string parameter_, difference_;
  std::optional<std::int64_t> count_;
};
/// Of torch's optimizer at `root`: those at "N.step". `names`: N as text -> the parameter, which
/// else goes by N. Errors as count_at().
UpdateCounts counts_in(const Named& tensors,
                       const json::Value& values,
                       const std::string& root,
                       const std::map<std::string, std::string>& names,
                       const std::filesystem::path& file);
/// The number there, if it is one.
std::optional<double> number_at(const json::Value& value, std::string_view path);

}  // namespace tessera::interop
