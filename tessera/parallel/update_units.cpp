// SPDX-License-Identifier: Apache-2.0
#include "tessera/parallel/update_units.h"

#include <algorithm>
#include <deque>

#include "tessera/base/error.h"
#include "tessera/tensor/flat_buffer.h"

namespace tessera::parallel {

std::vector<Unit> cut_units(std::size_t group,
                            std::int64_t numel,
                            std::span<const UnitParam> params,
                            std::int64_t most) {
  TESSERA_ASSERT(most >= kChunk);
  const std::int64_t step = most / kChunk * kChunk;
  std::vector<Unit> out;
  std::int64_t begin = 0;
  const auto end_unit = [&](std::int64_t at) {
    if (at > begin) out.push_back({.group = group, .begin = begin, .numel = at - begin});
    begin = at;
  };
  for (const UnitParam& param : params) {
    const std::int64_t end = param.begin + chunks_of(param.numel) * kChunk;
    while (param.begin - begin > step)
      end_unit(begin + step);  // a gap
    if (param.whole) {
      if (end - begin > step) end_unit(param.begin);
      if (end - begin > step) end_unit(end);
      continue;
    }
    while (end - begin > step)
      end_unit(begin + step);
  }
  while (numel - begin > step)
    end_unit(begin + step);  // padding
  end_unit(numel);
  return out;
}

namespace {

/// The order in which units travel through a number of buffers.
class Travel {
 public:
  Travel(std::span<const Unit> units, int buffers, std::vector<UpdateAction>& out)
      : units_(units), buffers_(buffers), out_(out) {
    TESSERA_ASSERT(buffers >= 1);
    // One buffer is being updated and one written.
    if (buffers > 1) ahead_ = static_cast<std::size_t>(std::max(1, buffers - 2));
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (units_[u].trained && units_[u].travels) travelling_.push_back(u);
    }
  }

  /// Starts the reads that must or may be under way while `unit` is updated.
  void before(std::size_t unit) {
    if (!units_[unit].travels) return;
    while (next_ < travelling_.size() && next_ <= updated_ + ahead_) {
      if (held_ == buffers_) settle();
      add(UpdateActionKind::Fetch, travelling_[next_++]);
      ++held_;
    }
    ++updated_;
  }
  void after(std::size_t unit) {
    if (!units_[unit].travels) return;
    add(UpdateActionKind::WriteBack, unit);
    written_.push_back(unit);
  }
  void settle() {
    TESSERA_ASSERT(!written_.empty());
    add(UpdateActionKind::Settle, written_.front());
    written_.pop_front();
    --held_;
  }
  void settle_all() {
    while (!written_.empty())
      settle();
  }

 private:
  void add(UpdateActionKind kind, std::size_t unit) { out_.push_back({kind, unit}); }

  std::span<const Unit> units_;
  int buffers_, held_ = 0;
  std::size_t ahead_ = 0;  ///< units that are read before they are updated
  std::size_t next_ = 0, updated_ = 0;
  std::vector<std::size_t> travelling_;
  std::deque<std::size_t> written_;
  std::vector<UpdateAction>& out_;
};

}  // namespace

std::vector<UpdateAction> update_actions(std::span<const Unit> units, int buffers) {
  std::vector<UpdateAction> out;
  Travel travel(units, buffers, out);
  for (std::size_t u = 0; u < units.size(); ++u) {
    const std::size_t group = units[u].group;
    if (!units[u].trained) continue;
    if (u == 0 || units[u - 1].group != group) out.push_back({UpdateActionKind::BeginWrite, group});
    travel.before(u);
    out.push_back({UpdateActionKind::Update, u});
    travel.after(u);
    if (u + 1 == units.size() || units[u + 1].group != group)
      out.push_back({UpdateActionKind::Publish, group});
  }
  travel.settle_all();
  return out;
}

}  // namespace tessera::parallel
