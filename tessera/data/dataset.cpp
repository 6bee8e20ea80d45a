// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/dataset.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::data {
namespace {

std::string of(const Dataset& dataset, const TensorSpec& spec) {
  return fmt::format("{}: tensor \"{}\"", dataset.name(), spec.name);
}

/// C++20 has no type for 16-bit floats, so their bits are stored as integers.
bool holds(DType dtype, DType element) {
  return dtype == element ||
         (element == DType::U16 && (dtype == DType::F16 || dtype == DType::BF16));
}

std::vector<std::byte*> pointers(std::vector<std::vector<std::byte>>& memory) {
  std::vector<std::byte*> out;
  for (std::vector<std::byte>& tensor : memory)
    out.push_back(tensor.data());
  return out;
}

}  // namespace

std::int64_t TensorSpec::numel() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::size_t TensorSpec::bytes() const {
  return static_cast<std::size_t>(numel()) * size_of(dtype);
}

void check_tensors(const Dataset& dataset) {
  const std::vector<TensorSpec> specs = dataset.tensors();
  TESSERA_REQUIRE(!specs.empty(),
                  Shape,
                  fmt::format("{}: its samples have no tensors", dataset.name()),
                  "let tensors() return what read() writes");
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::vector<std::int64_t>& shape = specs[i].shape;
    TESSERA_REQUIRE(
        std::all_of(shape.begin(), shape.end(), [](auto size) { return size >= 1; }),
        Shape,
        fmt::format(
            "{} has the shape [{}] in a sample", of(dataset, specs[i]), fmt::join(shape, ", ")),
        "give it sizes of at least 1");
    for (std::size_t j = 0; j < i; ++j) {
      TESSERA_REQUIRE(specs[j].name != specs[i].name,
                      Shape,
                      fmt::format("{} is declared twice", of(dataset, specs[i])),
                      "give every tensor a name of its own");
    }
  }
}

SampleWriter::SampleWriter(const Dataset& dataset, std::vector<std::byte*> tensors)
    : dataset_(dataset),
      specs_(dataset.tensors()),
      tensors_(std::move(tensors)),
      written_(specs_.size(), false),
      needed_(specs_.size(), false) {
  TESSERA_ASSERT(tensors_.size() == specs_.size());
}

std::size_t SampleWriter::find(std::string_view name) const {
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].name == name) return i;
  }
  std::vector<std::string> names;
  for (const TensorSpec& spec : specs_)
    names.push_back(spec.name);
  throw Error(Error::Kind::Shape,
              fmt::format("{}: tensor \"{}\" is not declared", dataset_.name(), name),
              fmt::format("tensors() declares {}", fmt::join(names, ", ")));
}

std::span<std::byte> SampleWriter::room_of(std::string_view name, DType dtype) {
  const std::size_t i = find(name);
  TESSERA_REQUIRE(holds(specs_[i].dtype, dtype),
                  Shape,
                  fmt::format("{} is declared as {} and used as {}",
                              of(dataset_, specs_[i]),
                              tessera::name(specs_[i].dtype),
                              tessera::name(dtype)),
                  "use the element type that tensors() declares");
  written_[i] = true;
  const std::size_t bytes = specs_[i].bytes();
  return {tensors_[i] + static_cast<std::size_t>(row_) * bytes, bytes};
}

void SampleWriter::copy(std::string_view name,
                        DType dtype,
                        std::span<const std::byte> values,
                        std::size_t element) {
  const std::span<std::byte> room = room_of(name, dtype);
  if (values.size() != room.size()) {
    const TensorSpec& spec = specs_[find(name)];
    throw Error(Error::Kind::Shape,
                fmt::format("{} has {} values in sample {}, and its declared shape [{}] has {}",
                            of(dataset_, spec),
                            values.size() / element,
                            index_,
                            fmt::join(spec.shape, ", "),
                            spec.numel()),
                "write as many values as tensors() declares: cut or pad the sample");
  }
  std::memcpy(room.data(), values.data(), values.size());
}

void SampleWriter::need(std::string_view name) {
  needed_[find(name)] = true;
}

void SampleWriter::read(std::int64_t index, std::int64_t row, std::int64_t number) {
  TESSERA_ASSERT(index >= 0 && index < dataset_.size() && row >= 0);
  index_ = index;
  row_ = row;
  number_ = number;
  written_.assign(specs_.size(), false);
  dataset_.read(index, *this);
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    TESSERA_REQUIRE(written_[i],
                    Shape,
                    fmt::format("{} is not written in sample {}", of(dataset_, specs_[i]), index),
                    "let read() write every tensor that tensors() declares");
  }
}

Sample::Sample(const Dataset& dataset, std::int64_t index) {
  for (const TensorSpec& spec : dataset.tensors())
    memory_.emplace_back(spec.bytes());
  writer_ = std::make_unique<SampleWriter>(dataset, pointers(memory_));
  writer_->read(index, 0, index);
}

bool Sample::has(std::string_view name) const {
  const std::vector<TensorSpec>& specs = writer_->tensors();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name == name) return writer_->has(i);
  }
  return false;
}

}  // namespace tessera::data
