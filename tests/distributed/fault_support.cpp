#include "tests/distributed/fault_support.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "lockstep/distributed/store/tcp_store.h"

namespace lockstep::fault_test {
namespace {

using std::chrono::steady_clock;

constexpr Milliseconds kStart{20'000};  // for processes to start and meet, on a machine under load

std::string json(const std::string& text) {
  std::string out;
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  out += '"';
  return out;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

void drain(FileDescriptor& end, std::string& text) {
  char buffer[4096];
  const ssize_t n = read(end.get(), buffer, sizeof(buffer));
  if (n > 0)
    text.append(buffer, static_cast<std::size_t>(n));
  else
    end = FileDescriptor();
}

}  // namespace

Worker::Worker(const WorkerOptions& options) : rank_(options.rank) {
  int out[2], err[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
  out_end_ = FileDescriptor(out[0]);
  err_end_ = FileDescriptor(err[0]);
  const FileDescriptor out_write(out[1]), err_write(err[1]);
  std::vector<std::string> words = options.wrapper;
  for (const std::string& word : {std::string(LOCKSTEP_FAULT_WORKER), options.url, std::to_string(options.rank),
                                  std::to_string(options.world_size), std::to_string(options.deadline.count()),
                                  options.scenario, std::to_string(options.faulty), options.backend})
    words.push_back(word);
  std::vector<std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string variable = *entry;
    if (!options.environment.contains(variable.substr(0, variable.find('=')))) variables.push_back(variable);
  }
  for (const auto& [name, value] : options.environment) variables.push_back(name + "=" + value);
  const std::vector<char*> argv = pointers(words), envp = pointers(variables);
  pid_ = fork();
  EXPECT_GE(pid_, 0);
  if (pid_ == 0) {
    dup2(out_write.get(), STDOUT_FILENO);
    dup2(err_write.get(), STDERR_FILENO);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
}

Worker::~Worker() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Worker::signal(int number) {
  EXPECT_EQ(kill(pid_, number), 0);
}

bool Worker::pump(Milliseconds timeout) {
  pollfd ends[] = {{out_end_.get(), POLLIN, 0}, {err_end_.get(), POLLIN, 0}};
  if (poll(ends, 2, static_cast<int>(std::max<std::int64_t>(timeout.count(), 0))) <= 0) return false;
  if (ends[0].revents) drain(out_end_, out_);
  if (ends[1].revents) drain(err_end_, err_);
  return true;
}

std::string Worker::line(const std::string& word, Milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  for (;;) {
    for (std::size_t end; (end = out_.find('\n')) != std::string::npos;) {
      const std::string line = out_.substr(0, end);
      out_.erase(0, end + 1);
      if (line.starts_with(word)) return line.substr(std::min(line.size(), word.size() + 1));
    }
    const auto left = std::chrono::ceil<Milliseconds>(deadline - steady_clock::now());
    if (left.count() <= 0 || !out_end_ || !pump(left)) return "(none)";
  }
}

int Worker::status(Milliseconds timeout) {
  const auto deadline = steady_clock::now() + timeout;
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    if (steady_clock::now() >= deadline) return -1;
    if (out_end_ || err_end_)
      pump(Milliseconds(5));
    else
      std::this_thread::sleep_for(Milliseconds(5));
  }
  pid_ = -1;
  while (out_end_ && pump(Milliseconds(0))) {
  }
  while (err_end_ && pump(Milliseconds(0))) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

HostedStore::HostedStore() = default;

std::map<std::string, std::string> HostedStore::environment() const {
  return {
      {"LOCKSTEP_STORE_HOSTED", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(server_.port())}};
}

void HostedStore::wait_for_keys(std::int64_t count) const {
  distributed::TCPStore store({.port = server_.port()});
  const auto deadline = steady_clock::now() + Milliseconds(20'000);
  while (store.num_keys() < count && steady_clock::now() < deadline) std::this_thread::sleep_for(Milliseconds(5));
}

Row::Row(std::string fault) : fault_(std::move(fault)), start_(steady_clock::now()) {}

void Row::happens_now() {
  start_ = steady_clock::now();
}

void Row::check(const std::vector<Worker*>& survivors, const Expected& expected, Milliseconds limit) {
  constexpr const char* kReport = "ranks has failed: ";
  int reports = 0;
  std::string told = "[";
  for (Worker* worker : survivors) {
    const auto left = limit + Milliseconds(15'000) - (steady_clock::now() - start_);
    const int status = worker->status(std::chrono::duration_cast<Milliseconds>(left));
    const std::string& err = worker->err();
    EXPECT_EQ(status, expected.status) << "rank " << worker->rank() << ": " << err;
    EXPECT_FALSE(err.empty() && status != 0) << "rank " << worker->rank() << " ended without a word";
    for (const std::string& part : expected.everywhere)
      EXPECT_NE(err.find(part), std::string::npos) << "rank " << worker->rank() << " does not say '" << part << "':\n"
                                                   << err;
    if (const std::size_t report = err.find(kReport); report != std::string::npos) {
      ++reports;
      for (const std::string& part : expected.in_report)
        EXPECT_NE(err.find(part), std::string::npos) << "the report does not say '" << part << "':\n" << err;
    }
    if (told.size() > 1) told += ',';
    told.append("{\"rank\":").append(std::to_string(worker->rank()));
    told.append(",\"status\":").append(std::to_string(status)).append(",\"stderr\":").append(json(err)).append("}");
  }
  const auto took = steady_clock::now() - start_;
  // Where nothing fails there is nothing to notice: how long they train is the machine's speed.
  EXPECT_LE(took, expected.status == 0 ? 2 * limit : limit) << "before the last survivor was gone";
  EXPECT_EQ(reports, expected.report ? 1 : 0) << "the whole story has to be told once";

  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const double seconds = std::chrono::duration<double>(took).count();
  const double deadline = std::chrono::duration<double>(kDeadline).count();
  char times[64];
  std::snprintf(times, sizeof(times), "\"seconds\":%.2f,\"deadline\":%.1f", seconds, deadline);
  std::string row = "{\"fault\":";
  row.append(json(fault_)).append(",\"test\":");
  row.append(json(std::string(test->test_suite_name()).append(".").append(test->name())));
  row.append(",").append(times).append(",\"survivors\":").append(told).append("]}");
  std::printf("FAULT %s\n", row.c_str());
  if (const char* path = std::getenv("LOCKSTEP_FAULT_ROWS")) std::ofstream(path, std::ios::app) << row << '\n';
}

Job::Job(const std::string& scenario, int faulty, const std::string& url,
         const std::map<std::string, std::string>& environment, const std::string& backend)
    : faulty_(faulty) {
  for (int r = 0; r < kWorld; ++r)
    workers_.push_back(std::make_unique<Worker>(WorkerOptions{.url = url,
                                                              .rank = r,
                                                              .scenario = scenario,
                                                              .faulty = faulty,
                                                              .backend = backend,
                                                              .environment = environment}));
}

std::vector<Worker*> Job::survivors() const {
  std::vector<Worker*> result;
  for (const auto& worker : workers_)
    if (worker->rank() != faulty_) result.push_back(worker.get());
  return result;
}

void Job::wait_until_ready() {
  for (const auto& worker : workers_)
    ASSERT_EQ(worker->line("ready", kStart), std::to_string(kWorld)) << "the ranks did not meet: " << worker->err();
}

void run(const Fault& fault, const std::string& backend) {
  HostedStore store;
  Job job(fault.scenario, fault.faulty, "env://", store.environment(), backend);
  job.wait_until_ready();
  ASSERT_EQ(job[fault.faulty].line("phase", kStart), fault.scenario) << job[fault.faulty].err();
  if (fault.signal != 0) std::this_thread::sleep_for(kSeen);
  Row row(fault.text);
  if (fault.signal != 0) job[fault.faulty].signal(fault.signal);
  row.check(job.survivors(), fault.expected);
}

}  // namespace lockstep::fault_test
