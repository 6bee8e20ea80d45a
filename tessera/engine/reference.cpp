// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/reference.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/comm/world.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/shared_values.h"
#include "tessera/nn/context_parallel/context_parallel.h"

namespace tessera::engine {
namespace {

/// A dataset whose samples have one more tensor; the first `values.size() / numel` samples of its
/// fixed order have values.
class Referenced final : public data::Dataset {
 public:
  Referenced(std::shared_ptr<const void> owner,
             const data::Dataset& base,
             std::vector<double> values)
      : owner_(std::move(owner)),
        base_(base),
        spec_(*base.made_by_model()),
        values_(std::move(values)) {}

  [[nodiscard]] std::string name() const override { return base_.name(); }
  [[nodiscard]] std::int64_t size() const override { return base_.size(); }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override {
    std::vector<data::TensorSpec> out = base_.tensors();
    out.push_back(spec_);
    return out;
  }
  void read(std::int64_t index, data::SampleWriter& out) const override {
    base_.read(index, out);
    index = base_.fixed_index(index, out.number());
    const std::int64_t numel = spec_.numel();
    TESSERA_REQUIRE((index + 1) * numel <= std::ssize(values_),
                    Bug,
                    fmt::format("sample {} of {} has no reference", index, name()),
                    "make it of more samples");
    out.set(spec_.name,
            std::span(values_).subspan(static_cast<std::size_t>(index * numel),
                                       static_cast<std::size_t>(numel)));
  }
  [[nodiscard]] std::optional<std::int64_t> sequence_length() const override {
    return base_.sequence_length();
  }
  [[nodiscard]] const std::vector<double>& values() const { return values_; }

 private:
  std::shared_ptr<const void> owner_;  ///< owns `base_`
  const data::Dataset& base_;
  data::TensorSpec spec_;
  std::vector<double> values_;
};

using Values = std::vector<double>;

std::shared_ptr<const data::Datasets> joined(const std::shared_ptr<const data::Datasets>& data,
                                             Values train,
                                             Values validation) {
  auto out = std::make_shared<data::Datasets>();
  out->train = std::make_unique<Referenced>(data, *data->train, std::move(train));
  if (data->validation != nullptr)
    out->validation = std::make_unique<Referenced>(data, *data->validation, std::move(validation));
  out->train_tokens = data->train_tokens;
  out->validation_tokens = data->validation_tokens;
  out->train_stats = data->train_stats;
  out->validation_stats = data->validation_stats;
  out->fingerprint = data->fingerprint;
  out->validation_fingerprint = data->validation_fingerprint;
  out->test_fingerprint = data->test_fingerprint;
  return out;
}

Values made_of(const data::Dataset& dataset,
               parallel::Executor& executor,
               comm::World& world,
               std::int64_t samples,
               std::int64_t batch_size) {
  const data::TensorSpec spec = *dataset.made_by_model();
  const std::int64_t numel = spec.numel(), batches = (samples + batch_size - 1) / batch_size;
  const nn::ContextParallel* const shared = executor.model().context_parallel();
  Values values(static_cast<std::size_t>(samples * numel), 0.0);
  const comm::Group& group = world.group(mesh::AxisSet::dp());
  const auto compute = [&](std::int64_t i) {
    if (i >= batches) return executor.infer_nothing();
    const std::int64_t first = i * batch_size, end = std::min(samples, first + batch_size);
    std::vector<std::int64_t> indices;
    for (std::int64_t s = first; s < end; ++s)
      indices.push_back(s);
    nn::StepContext context(nn::Mode::Eval, 0);
    const nn::Objective* const objective = executor.model().objective();
    nn::Batch batch = make_batch(world, dataset, indices, indices);
    if (shared != nullptr) batch = nn::own_tokens(batch, *shared, objective);
    const nn::Outcome out = executor.infer(batch, context);
    world.show_life();
    world.transport().progress();
    // Another stage has the objective, or the first of the ranks that share tokens the values.
    if (objective == nullptr || (shared != nullptr && shared->group->index > 0)) return;
    const auto made = out.outputs.find(spec.name);
    TESSERA_REQUIRE(made != out.outputs.end() && made->second.numel() == (end - first) * numel,
                    Shape,
                    fmt::format("the objective makes no \"{}\" of {} numbers for each sample of {}",
                                spec.name,
                                numel,
                                dataset.name()),
                    "choose the task's own objective");
    const at::Tensor own = made->second.to(at::kCPU, at::kDouble).contiguous();
    std::copy_n(own.const_data_ptr<double>(), own.numel(), values.begin() + first * numel);
  };
  for (std::int64_t first = 0; first < batches; first += group.size())
    compute(first + group.index);
  share_values(world, values, "log-probabilities of the reference");
  return values;
}

// File layout: a magic number, a hash of everything after it, the hash of the data, the numbers of
// values, the values.
constexpr std::uint64_t kMark = 0x3165636e65726566ULL;  // "ference1"
struct Header {
  std::uint64_t mark = kMark, hash = 0, data = 0, train = 0, validation = 0;
};

std::uint64_t hash_of(std::string_view bytes) {
  return files::xxh3(std::as_bytes(std::span(bytes)));
}
std::uint64_t data_of(const data::Datasets& data) {
  return hash_of(data.fingerprint + "\n" + data.validation_fingerprint);
}

const Values& values_of(const data::Dataset* dataset) {
  static const Values none;
  const auto* const referenced = dynamic_cast<const Referenced*>(dataset);
  return referenced == nullptr ? none : referenced->values();
}

struct Kept {
  Values train, validation;
};
/// Returns nothing if the file does not contain what the data needs.
std::optional<Kept> read_kept(const data::Datasets& data, const std::filesystem::path& file) {
  std::string bytes;
  try {
    if (!std::filesystem::is_regular_file(file)) return std::nullopt;
    bytes = files::read(file);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  Header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  constexpr std::size_t kHashed = 2 * sizeof(std::uint64_t);
  const std::uint64_t room = (bytes.size() - sizeof header) / sizeof(double);
  const auto numel = static_cast<std::uint64_t>(data.train->made_by_model()->numel());
  if (header.mark != kMark || header.data != data_of(data) ||
      header.hash != hash_of(std::string_view(bytes).substr(kHashed)) || header.train > room ||
      header.validation != room - header.train ||
      header.train != static_cast<std::uint64_t>(data.train->in_fixed_order().size()) * numel) {
    return std::nullopt;
  }
  Kept out{Values(header.train), Values(header.validation)};
  const char* const values = bytes.data() + sizeof header;
  std::memcpy(out.train.data(), values, header.train * sizeof(double));
  std::memcpy(out.validation.data(),
              values + header.train * sizeof(double),
              header.validation * sizeof(double));
  return out;
}

}  // namespace

bool wants_reference(const data::Datasets& data) {
  return data.train->made_by_model().has_value();
}

std::shared_ptr<const data::Datasets> with_reference(std::shared_ptr<const data::Datasets> data,
                                                     parallel::Executor& executor,
                                                     comm::World& world,
                                                     const ReferenceSamples& samples) {
  const data::Dataset& all = data->train->in_fixed_order();
  Values train = made_of(all, executor, world, all.size(), samples.train_batch);
  Values validation;
  if (data->validation != nullptr) {
    validation = made_of(*data->validation,
                         executor,
                         world,
                         std::min(data->validation->size(), samples.validation),
                         samples.validation_batch);
  }
  return joined(data, std::move(train), std::move(validation));
}

std::shared_ptr<const data::Dataset> with_reference(std::shared_ptr<const data::Dataset> dataset,
                                                    parallel::Executor& executor,
                                                    comm::World& world,
                                                    std::int64_t samples,
                                                    std::int64_t batch_size) {
  const data::Dataset& base = *dataset;
  Values values = made_of(base, executor, world, samples, batch_size);
  return std::make_shared<Referenced>(std::move(dataset), base, std::move(values));
}

void keep_reference(const data::Datasets& with_reference, const std::filesystem::path& file) {
  const Values &train = values_of(with_reference.train.get()),
               &validation = values_of(with_reference.validation.get());
  Header header{
      .data = data_of(with_reference), .train = train.size(), .validation = validation.size()};
  std::string bytes(sizeof header, '\0');
  std::memcpy(bytes.data(), &header, sizeof header);
  for (const Values* values : {&train, &validation})
    bytes.append(reinterpret_cast<const char*>(values->data()), values->size() * sizeof(double));
  header.hash = hash_of(std::string_view(bytes).substr(2 * sizeof(std::uint64_t)));
  std::memcpy(bytes.data(), &header, sizeof header);
  files::write_atomic(file, bytes);
}

std::shared_ptr<const data::Datasets> with_kept_reference(
    std::shared_ptr<const data::Datasets> data,
    comm::World& world,
    const std::filesystem::path& file) {
  std::optional<Kept> kept = read_kept(*data, file);
  const std::vector<double> everybody =
      world.all_reduce(world.everyone(),
                       {kept ? 0.0 : 1.0},
                       comm::Op::Sum,
                       TESSERA_HERE("whether a reference is kept"));
  if (everybody.front() > 0) return nullptr;
  return joined(data, std::move(kept->train), std::move(kept->validation));
}

}  // namespace tessera::engine
