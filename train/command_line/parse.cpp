#include "lockstep/train/command_line/parse.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>

#include "lockstep/train/command_line/main.h"

namespace lockstep::command_line {
namespace {

// "--some_name=some_value" with dashes in the name.
std::string with_dashes(std::string word) {
  const auto end = std::find(word.begin(), word.end(), '=');
  std::replace(word.begin(), end, '_', '-');
  return word;
}

bool takes_next_word(const CLI::App& app, const std::string& word) {
  if (word.find('=') != std::string::npos) return false;
  const CLI::Option* const option = app.get_option_no_throw(word);
  return option && option->get_items_expected_max() > 0;
}

}  // namespace

bool parse(CLI::App& app, int argc, const char* const* argv, std::vector<std::string>* program) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  std::vector<std::string> own;
  std::size_t i = 0;
  for (; i < words.size() && words[i] != "--"; ++i) {
    const bool is_option = words[i].size() > 1 && words[i][0] == '-';
    if (!is_option && program) break;
    const bool is_long = words[i].rfind("--", 0) == 0;
    own.push_back(is_long ? with_dashes(words[i]) : words[i]);
    if (is_option && i + 1 < words.size() && takes_next_word(app, own.back())) own.push_back(words[++i]);
  }
  if (program) {
    if (i < words.size() && words[i] == "--") ++i;
    program->assign(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  } else {
    own.insert(own.end(), words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
  }
  std::reverse(own.begin(), own.end());  // the order in which CLI11 takes them
  try {
    app.parse(own);
  } catch (const CLI::CallForHelp&) {
    std::string help = app.help();
    const std::string usage = "[OPTIONS]";
    if (const std::size_t at = help.find(usage); program && at != std::string::npos)
      help.insert(at + usage.size(), " [--] PROGRAM [ARGUMENTS...]");
    std::fputs(help.c_str(), stdout);
    return false;
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    throw UsageError(fmt::format("{}; see --help", message));
  }
  return true;
}

CLI::Validator at_least(double least) {
  const auto check = [least](std::string& text) {
    double value = 0;
    if (!CLI::detail::lexical_cast(text, value)) return fmt::format("'{}' is no number", text);
    return value >= least ? std::string() : fmt::format("{} is below {}", text, least);
  };
  return CLI::Validator(check, fmt::format(">= {}", least));
}

}  // namespace lockstep::command_line
