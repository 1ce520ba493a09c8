#include "distributed/job/job.h"
namespace lockstep::distributed { const ProcessGroupPtr& Job::process_group() const { throw 1; } }
