// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/schedule_table.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::optim {
namespace {

/// The rows of one name; at most one of them has no `selected_by`.
std::vector<ScheduleRow>& rows_of(std::string_view type) {
  static std::map<std::string, std::vector<ScheduleRow>> table;
  return table[text::lower(type)];
}

config::ChoiceSlot shape_slot(DecayShape& member, ShapeNames names) {
  config::ChoiceSlot out;
  for (const auto& [shape, name] : names)
    out.names.emplace_back(name);
  out.read = [&member, names]() -> std::optional<std::string> {
    const auto at =
        std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.value == member; });
    return std::string(at->name);
  };
  out.set = [&member, names](const std::string& word) {
    const auto at =
        std::find_if(names.begin(), names.end(), [&](const auto& n) { return n.name == word; });
    member = at->value;
  };
  return out;
}

/// The values of a row as options. A default is set when they are made, since a reader may visit
/// them more than once.
struct RowOptions {
  explicit RowOptions(const ScheduleRow& of) : row(of) {
    for (const ScheduleParam& param : row.params)
      std::visit([&](auto member) { set_default(values.*member, param); }, param.member);
  }
  static void set_default(std::int64_t& member, const ScheduleParam& param) {
    member = static_cast<std::int64_t>(param.otherwise);
  }
  static void set_default(double& member, const ScheduleParam& param) { member = param.otherwise; }
  static void set_default(DecayShape& member, const ScheduleParam& param) { member = param.shape; }
  template <class T>
  static void set_default(T& /*member*/, const ScheduleParam& /*param*/) {}

  void describe(config::Fields& f) {
    for (const ScheduleParam& param : row.params) {
      std::visit(
          [&](auto pointer) {
            auto& member = values.*pointer;
            if constexpr (std::is_same_v<std::remove_reference_t<decltype(member)>, DecayShape>)
              f.choice(param.key, shape_slot(member, param.shapes), param.doc);
            else
              f.field(param.key, member, param.doc);
          },
          param.member);
    }
  }

  const ScheduleRow& row;
  Given values;
};

bool reads_total(const ScheduleRow& row) {
  return std::any_of(row.params.begin(), row.params.end(), [](const ScheduleParam& param) {
    const auto* const member = std::get_if<std::int64_t Given::*>(&param.member);
    return member != nullptr && *member == &Given::total;
  });
}

class RowSchedule final : public Schedule {
 public:
  RowSchedule(const ScheduleRow& row, Given values) : row_(row), values_(std::move(values)) {}

  [[nodiscard]] std::int64_t warmup_steps() const override { return values_.warmup; }
  [[nodiscard]] double lr(std::int64_t update) const override {
    const std::int64_t t = update - row_.first_update;
    const bool rises = t < values_.warmup && row_.rise != nullptr;
    return rises ? row_.rise(values_, t) : row_.fall(values_, t);
  }

 private:
  const ScheduleRow& row_;  // in the table, which lives as long as the program
  Given values_;
};

std::unique_ptr<Schedule> make_from(const ScheduleRow& row,
                                    const json::Value& params,
                                    const ScheduleContext& context,
                                    config::Problems& problems,
                                    config::Origins& origins) {
  RowOptions options(row);
  json::Value source = params.is_null() ? json::Value::object() : params;
  source.place = params.place;
  config::read(source, options, problems, origins);
  Given& values = options.values;
  values.base = context.base_lr;
  if (values.warmup_share && values.warmup == 0) {
    values.warmup = static_cast<std::int64_t>(
        std::ceil(static_cast<double>(context.max_steps) * *values.warmup_share));
  }
  if (!row.total_after_warmup.empty())
    check_warmup(values.warmup, values.total, row.total_after_warmup, params, problems);
  if (reads_total(row) && values.total == 0) values.total = context.max_steps;
  if (row.check != nullptr) row.check(values, {params, context, problems});
  return std::make_unique<RowSchedule>(row, std::move(values));
}

const ScheduleRow& selected(const std::vector<ScheduleRow>& rows, const json::Value& params) {
  const ScheduleRow* plain = nullptr;
  for (const ScheduleRow& row : rows) {
    if (row.selected_by.empty()) plain = &row;
    for (const std::string_view key : row.selected_by) {
      if (params.is_object() && params.find(key) != nullptr) return row;
    }
  }
  TESSERA_ASSERT(plain != nullptr);
  return *plain;
}

}  // namespace

bool add_schedules(std::vector<ScheduleRow> rows) {
  for (ScheduleRow& row : rows) {
    const std::string type(row.type);
    const bool named = row.selected_by.empty();
    std::vector<ScheduleRow>& all = rows_of(type);
    all.push_back(std::move(row));
    if (!named) continue;
    schedules().add(type,
                    [&all](const json::Value& params,
                           const ScheduleContext& context,
                           config::Problems& problems,
                           config::Origins& origins) {
                      return make_from(selected(all, params), params, context, problems, origins);
                    });
  }
  return true;
}

}  // namespace tessera::optim
