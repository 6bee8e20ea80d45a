// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/class_plots.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/report/svg.h"

namespace tessera::report {
std::string confusion_plot(const std::vector<std::string>& names,
                           const std::vector<std::int64_t>& confusion) {
  const std::size_t classes = names.size();
  TESSERA_ASSERT(confusion.size() == classes * classes);
  constexpr double kTop = 64, kLetter = 7;
  constexpr std::size_t kNumbers = 30;  // maximum number of classes for which cells show numbers
  const double cell = classes <= kNumbers ? 56 : 12;
  std::size_t longest = 0;
  for (const std::string& name : names)
    longest = std::max(longest, std::min<std::size_t>(name.size(), 24));
  const double left = 24 + kLetter * static_cast<double>(longest);
  std::string out = svg_label(left, 20, "start", "predicted (columns), true (rows)");
  for (std::size_t row = 0; row < classes; ++row) {
    std::int64_t all = 0;
    for (std::size_t column = 0; column < classes; ++column)
      all += confusion[row * classes + column];
    const double y = kTop + cell * static_cast<double>(row);
    if (classes <= kNumbers) {
      out += svg_label(left - 8, y + cell / 2 + 4, "end", names[row].substr(0, 24));
      out += svg_label(left + cell * (static_cast<double>(row) + 0.5),
                       kTop - 8,
                       "middle",
                       names[row].substr(0, 8));
    }
    for (std::size_t column = 0; column < classes; ++column) {
      const std::int64_t count = confusion[row * classes + column];
      const double share = all == 0 ? 0 : static_cast<double>(count) / static_cast<double>(all);
      const double x = left + cell * static_cast<double>(column);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"#1f5fa8\" "
          "fill-opacity=\"{:.3f}\" stroke=\"#ccc\"><title>{} said of {}: {}</title></rect>\n",
          x,
          y,
          cell,
          cell,
          share,
          svg_escaped(names[column]),
          svg_escaped(names[row]),
          count);
      if (classes > kNumbers) continue;
      out += fmt::format(
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
          x + cell / 2,
          y + cell / 2 + 4,
          share > 0.5 ? "white" : "#333",
          count);
    }
  }
  const double side = cell * static_cast<double>(classes);
  return svg_picture(left + side + 24, kTop + side + 24, out);
}

std::string flags_plot(const std::vector<std::string>& names,
                       const std::vector<std::vector<std::int64_t>>& confusion) {
  TESSERA_ASSERT(confusion.size() == names.size());
  constexpr std::array<const char*, 4> kColumns = {
      "rightly absent", "wrongly found", "missed", "rightly found"};
  constexpr double kTop = 64, kLetter = 7, kWidth = 104, kHeight = 24;
  std::size_t longest = 0;
  for (const std::string& name : names)
    longest = std::max(longest, std::min<std::size_t>(name.size(), 24));
  const double left = 24 + kLetter * static_cast<double>(longest);
  std::string out = svg_label(left, 20, "start", "samples without and with each label");
  for (std::size_t column = 0; column < kColumns.size(); ++column)
    out += svg_label(
        left + kWidth * (static_cast<double>(column) + 0.5), kTop - 8, "middle", kColumns[column]);
  for (std::size_t row = 0; row < names.size(); ++row) {
    const double y = kTop + kHeight * static_cast<double>(row);
    out += svg_label(left - 8, y + kHeight / 2 + 4, "end", names[row].substr(0, 24));
    for (std::size_t column = 0; column < kColumns.size(); ++column) {
      const std::int64_t count = confusion[row].at(column),
                         all = count + confusion[row].at(column ^ 1U);
      const double share = all == 0 ? 0 : static_cast<double>(count) / static_cast<double>(all);
      const double x = left + kWidth * static_cast<double>(column);
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"#1f5fa8\" "
          "fill-opacity=\"{:.3f}\" stroke=\"#ccc\"><title>{} {}: {}</title></rect>\n"
          "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"{}\">{}</text>\n",
          x,
          y,
          kWidth,
          kHeight,
          share,
          svg_escaped(names[row]),
          kColumns[column],
          count,
          x + kWidth / 2,
          y + kHeight / 2 + 4,
          share > 0.5 ? "white" : "#333",
          count);
    }
  }
  return svg_picture(left + kWidth * static_cast<double>(kColumns.size()) + 24,
                     kTop + kHeight * static_cast<double>(names.size()) + 24,
                     out);
}

std::string roc_plot(std::vector<RocCurve> curves) {
  constexpr double kSide = 400, kLeft = 56, kTop = 36;
  constexpr std::array<const char*, kMostCurves> kColors = {"#1f5fa8",
                                                            "#d1495b",
                                                            "#2e8b57",
                                                            "#e0a030",
                                                            "#7b4fa3",
                                                            "#4aa3c0",
                                                            "#8c564b",
                                                            "#c05299",
                                                            "#6b7a3a",
                                                            "#555555"};
  std::ranges::stable_sort(curves, {}, &RocCurve::area);
  if (curves.size() > kMostCurves) curves.resize(kMostCurves);
  const auto x = [](double rate) { return kLeft + kSide * rate; };
  const auto y = [](double rate) { return kTop + kSide * (1 - rate); };
  const bool one = curves.size() == 1;
  std::string out = svg_label(
      kLeft, 20, "start", one ? fmt::format("ROC, area {:.4f}", curves.front().area) : "ROC");
  for (int i = 0; i <= 4; ++i) {
    const double rate = 0.25 * i;
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#e4e4e4\"/>\n",
        kLeft,
        kLeft + kSide,
        y(rate));
    out += svg_label(kLeft - 8, y(rate) + 4, "end", fmt::format("{:.2f}", rate));
    out += svg_label(x(rate), kTop + kSide + 18, "middle", fmt::format("{:.2f}", rate));
  }
  out += fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#bbb\" "
      "stroke-dasharray=\"4\"/>\n",
      x(0),
      y(0),
      x(1),
      y(1));
  constexpr std::size_t kMostPoints = 1500;
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const std::vector<tasks::RocPoint>& points = curves[c].points;
    out += fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" points=\"",
                       kColors[c]);
    const std::size_t every = std::max<std::size_t>(1, points.size() / kMostPoints);
    for (std::size_t i = 0; i < points.size(); ++i) {
      if (i % every == 0 || i + 1 == points.size())
        out += fmt::format(
            "{:.1f},{:.1f} ", x(points[i].false_positives), y(points[i].true_positives));
    }
    out += "\"/>\n";
    if (one) continue;
    const double line = y(0) - 16 * static_cast<double>(curves.size() - c);
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                       x(0.55),
                       line - 9,
                       kColors[c]);
    out += svg_label(x(0.55) + 16,
                     line,
                     "start",
                     fmt::format("{}, area {:.4f}", curves[c].name.substr(0, 16), curves[c].area));
  }
  out += svg_label(kLeft + kSide / 2, kTop + kSide + 40, "middle", "false positive rate");
  out += fmt::format(
      "<text x=\"14\" y=\"{0:.0f}\" transform=\"rotate(-90 14 {0:.0f})\" "
      "text-anchor=\"middle\">true positive rate</text>\n",
      kTop + kSide / 2);
  return svg_picture(kLeft + kSide + 24, kTop + kSide + 56, out);
}

}  // namespace tessera::report
