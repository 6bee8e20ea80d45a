// SPDX-License-Identifier: Apache-2.0
// Helpers for tests of checkpoints: tensors of known values, layouts that shard them, ranks as
// threads.
#pragma once

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/storage_fakes.h"

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/checkpoint/background.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"

namespace tessera::checkpoint::test {

namespace fs = std::filesystem;
using Shape = std::vector<std::int64_t>;

struct Spec {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
};

inline std::int64_t numel(const Shape& shape) {
  std::int64_t n = 1;
  for (const auto d : shape)
    n *= d;
  return n;
}

/// Returns the bytes of a tensor: a function of its name and `seed`, finite in every float dtype.
inline std::vector<std::byte> values(const Spec& spec, std::uint64_t seed = 0) {
  const Philox noise{mix64(seed, std::hash<std::string>()(spec.name))};
  std::vector<std::byte> out(static_cast<std::size_t>(numel(spec.shape)) * size_of(spec.dtype));
  for (std::size_t i = 0; i < out.size(); i += sizeof(Philox::Block)) {
    const Philox::Block block = noise(i);
    std::memcpy(out.data() + i, block.data(), std::min(sizeof(block), out.size() - i));
  }
  // Infinities and NaN have an exponent of all ones.
  const std::size_t width = size_of(spec.dtype);
  for (std::size_t i = width - 1; i < out.size(); i += width)
    out[i] &= std::byte{0x3F};
  return out;
}

/// Returns a model with odd sizes, a scalar, an empty tensor, several dtypes and optimizer state.
inline std::vector<Spec> small_model() {
  return {{"wte", DType::F32, {53, 8}},
          {"h.0.qkv", DType::F32, {3, 4, 5, 8}},
          {"h.0.bias", DType::F32, {7}},
          {"h.0.half", DType::BF16, {9, 6}},
          {"scale", DType::F32, {}},
          {"nothing", DType::F32, {0, 4}},
          {"ids", DType::I64, {5}},
          {"optimizer.exp_avg.wte", DType::F32, {53, 8}},
          {"optimizer.exp_avg.h.0.bias", DType::F32, {7}}};
}

/// Returns the pieces of a tensor that one rank holds.
using Layout = std::vector<mesh::Piece> (*)(const Shape& shape, int rank, int ranks);

inline std::pair<std::int64_t, std::int64_t> part(std::int64_t size, int rank, int ranks) {
  return {size * rank / ranks, size * (rank + 1) / ranks};
}
/// ZeRO: a range of the elements.
inline std::vector<mesh::Piece> ranges(const Shape& shape, int rank, int ranks) {
  const auto [begin, end] = part(numel(shape), rank, ranks);
  if (begin == end) return {};
  return {{mesh::whole(shape), begin, end}};
}
/// Tensor parallelism: a slice of one dim (the last, so that rows are split); a scalar or empty
/// tensor is on rank 0.
inline std::vector<mesh::Piece> columns(const Shape& shape, int rank, int ranks) {
  if (shape.empty() || numel(shape) == 0)
    return ranges(shape, rank == 0 ? 0 : 1, rank == 0 ? 1 : 2 << 20);
  mesh::Box box = mesh::whole(shape);
  std::tie(box.begin.back(), box.end.back()) = part(shape.back(), rank, ranks);
  if (box.begin.back() == box.end.back()) return {};
  return {{box, 0, box.numel()}};
}
/// Both: pairs of ranks share a slice of the first dim, each holding an uneven range of it.
inline std::vector<mesh::Piece> rows_then_ranges(const Shape& shape, int rank, int ranks) {
  if (shape.empty() || numel(shape) == 0 || ranks % 2 != 0) return ranges(shape, rank, ranks);
  mesh::Box box = mesh::whole(shape);
  std::tie(box.begin[0], box.end[0]) = part(shape[0], rank / 2, ranks / 2);
  const auto [begin, end] = part(box.numel(), rank % 2, 2);
  if (begin == end) return {};
  return {{box, begin, end}};
}

/// Copies between a whole tensor and one of its pieces in row-major order, element by element;
/// deliberately simple and slow.
inline void copy_piece(
    const Spec& spec, const mesh::Piece& piece, std::byte* whole, std::byte* part, bool to_part) {
  const std::size_t width = size_of(spec.dtype);
  for (std::int64_t i = piece.begin; i < piece.end; ++i) {
    std::int64_t rest = i, index = 0, stride = 1;
    for (std::size_t d = spec.shape.size(); d-- > 0;) {
      const std::int64_t size = piece.box.end[d] - piece.box.begin[d];
      index += (piece.box.begin[d] + rest % size) * stride;
      rest /= size;
      stride *= spec.shape[d];
    }
    std::byte* a = whole + static_cast<std::size_t>(index) * width;
    std::byte* b = part + static_cast<std::size_t>(i - piece.begin) * width;
    std::memcpy(to_part ? b : a, to_part ? a : b, width);
  }
}

/// The pieces that one rank holds, with their memory.
struct Held {
  std::vector<Spec> specs;
  std::vector<std::vector<std::byte>> memory;
  std::vector<PieceBytes> pieces;
};
inline Held held(const std::vector<Spec>& model,
                 Layout layout,
                 int rank,
                 int ranks,
                 bool filled,
                 std::uint64_t seed = 0) {
  Held out;
  for (const auto& spec : model) {
    auto cut = layout(spec.shape, rank, ranks);
    if (numel(spec.shape) == 0 && rank == 0) cut = {{mesh::whole(spec.shape), 0, 0}};
    for (const auto& piece : cut) {
      auto whole = values(spec, seed);
      std::vector<std::byte> bytes(static_cast<std::size_t>(piece.end - piece.begin) *
                                   size_of(spec.dtype));
      if (filled) copy_piece(spec, piece, whole.data(), bytes.data(), true);
      out.specs.push_back(spec);
      out.memory.push_back(std::move(bytes));
      out.pieces.push_back({spec.name, spec.dtype, spec.shape, piece, out.memory.back()});
    }
  }
  return out;
}

/// Runs `work(ranks)` on `count` threads that share a barrier; rethrows the first error.
template <class F>
void on_ranks(int count, F work) {
  std::barrier meet(count);
  std::vector<std::vector<std::uint32_t>> numbers(static_cast<std::size_t>(count));
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(count));
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      Ranks ranks{r,
                  count,
                  [&] { meet.arrive_and_wait(); },
                  [&, r](std::vector<std::uint32_t> mine) {
                    numbers[static_cast<std::size_t>(r)] = mine;
                    meet.arrive_and_wait();
                    for (const std::vector<std::uint32_t>& other : numbers) {
                      for (std::size_t i = 0; i < mine.size(); ++i)
                        mine[i] = std::max(mine[i], other.at(i));
                    }
                    meet.arrive_and_wait();
                    return mine;
                  }};
      try {
        work(ranks);
      } catch (...) {
        failures[static_cast<std::size_t>(r)] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

inline Meta meta_at(std::int64_t step) {
  Meta meta;
  meta.step = step;
  meta.samples = step * 12;
  meta.tokens = step * 768;
  meta.config = json::Value::object({{"train_batch_size", json::Value::integer(12)}});
  meta.extra = json::Value::object({{"note", json::Value::string("as trained")}});
  return meta;
}

/// Does what a training step does for a save in progress.
inline void make_step(BackgroundSave& save, const Ranks& me) {
  const BackgroundSave::Progress mine = save.progress();
  const bool busy = me.any(mine.busy), failed = me.any(mine.failed);
  save.advance({busy, failed});
}

/// How a save is made: training waits for it; training makes steps until the save has finished; or
/// training makes one step and then waits.
enum class How { Waiting, Background, BackgroundThenWaiting };

/// Saves the part of one rank.
inline fs::path save_rank(How how,
                          Storage& disk,
                          const fs::path& root,
                          std::int64_t step,
                          Held mine,
                          const Ranks& me,
                          const std::function<void()>& then = {}) {
  if (how == How::Waiting) {
    fs::path folder = save(disk, root, meta_at(step), mine.pieces, me);
    if (me.rank == 0 && then) then();
    return folder;
  }
  auto memory = std::make_shared<const Held>(std::move(mine));
  BackgroundSave save(disk, root, meta_at(step), memory->pieces, memory, me, then);
  memory.reset();
  do
    make_step(save, me);
  while (how == How::Background && !save.settled());
  return save.finish().folder;
}

/// Saves the model sharded by `layout` over `ranks` ranks; `seed` selects its values.
inline fs::path save_model(Storage& disk,
                           const fs::path& root,
                           std::int64_t step,
                           const std::vector<Spec>& model = small_model(),
                           Layout layout = ranges,
                           int ranks = 1,
                           std::uint64_t seed = 0,
                           How how = How::Waiting,
                           const std::function<void()>& then = {}) {
  fs::path folder;
  on_ranks(ranks, [&](const Ranks& me) {
    const fs::path made =
        save_rank(how, disk, root, step, held(model, layout, me.rank, ranks, true, seed), me, then);
    if (me.rank == 0) folder = made;
  });
  return folder;
}

inline fs::path save_model(const fs::path& root,
                           std::int64_t step,
                           const std::vector<Spec>& model = small_model(),
                           Layout layout = ranges,
                           int ranks = 1,
                           std::uint64_t seed = 0) {
  WatchedStorage disk;
  return save_model(disk, root, step, model, layout, ranks, seed);
}

/// Returns whether a load into this layout returns every element as it was saved.
inline bool loads_exactly(const fs::path& folder,
                          const std::vector<Spec>& model = small_model(),
                          Layout layout = ranges,
                          int ranks = 1,
                          std::uint64_t seed = 0) {
  for (int r = 0; r < ranks; ++r) {
    const Held wanted = held(model, layout, r, ranks, true, seed);
    Held got = held(model, layout, r, ranks, false, seed);
    Checkpoint(folder).load(got.pieces);
    if (got.memory != wanted.memory) return false;
  }
  return true;
}

/// Returns the error that `work` throws; Error{Bug} if it throws none.
template <class F>
Error error_of(F work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  return Error(Error::Kind::Bug, "nothing was thrown");
}

inline std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
/// Creates a new file instead of overwriting: ext4 waits for the disk when a truncated file is
/// closed.
inline void spill(const fs::path& path, const std::string& content) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

}  // namespace tessera::checkpoint::test
