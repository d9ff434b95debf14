package searchnode

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

//go:embed assets
var assets embed.FS

// The engines that Start knows.
const (
	OpenSearch2    = "opensearch2"    // OpenSearch 2.19
	OpenSearch3    = "opensearch3"    // OpenSearch 3.9
	Elasticsearch7 = "elasticsearch7" // Elasticsearch 7.17
)

// An engine is what differs between the engines when a node of one is built and started.
type engine struct {
	name string
	// root is the Java package under which the engine's classes stand.
	root string
	// minJava and maxJava bound the Java versions that run it. Elasticsearch 7 and OpenSearch 2 install a security
	// manager, which Java 24 no longer has (JEP 486).
	minJava, maxJava int
	// initialManagers is the setting that names the nodes which form the first cluster.
	initialManagers string
	// pluginInfo is set where the embedded node takes a PluginInfo for each plug-in instead of its class.
	pluginInfo bool
}

var engines = []engine{
	{name: OpenSearch2, root: "org.opensearch", minJava: 17, maxJava: 23, initialManagers: "cluster.initial_cluster_manager_nodes"},
	{name: OpenSearch3, root: "org.opensearch", minJava: 21, maxJava: 99, initialManagers: "cluster.initial_cluster_manager_nodes", pluginInfo: true},
	{name: Elasticsearch7, root: "org.elasticsearch", minJava: 17, maxJava: 23, initialManagers: "cluster.initial_master_nodes"},
}

// Engines returns the names of the engines, in the order in which they are tried by default.
func Engines() []string {
	names := make([]string, len(engines))
	for i, e := range engines {
		names[i] = e.name
	}
	return names
}

func engineNamed(name string) (engine, error) {
	for _, e := range engines {
		if e.name == name {
			return e, nil
		}
	}
	return engine{}, fmt.Errorf("unknown engine %q: one of %s", name, strings.Join(Engines(), ", "))
}

// Find tells whether the engine can be run on this machine: a JDK of a version that fits, and Maven or the engine's jars
// in the cache. reason says what is missing, for a person to read. Find starts no process and fetches nothing.
func Find(engine string) (reason string, ok bool) {
	e, err := engineNamed(engine)
	if err != nil {
		return err.Error(), false
	}
	if _, err := findJDK(e, jdkHomes()); err != nil {
		return err.Error(), false
	}
	dir, err := e.cacheDir()
	if err != nil {
		return err.Error(), false
	}
	if _, err := os.Stat(dir); err == nil {
		return "", true
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return engine + " needs Maven to fetch its jars: no mvn on the PATH", false
	}
	return "", true
}

// jdkHomes lists the Java homes worth a look, the ones that the user chose first. It is empty when the user has no Java
// in JAVA_HOME and none on the PATH, even if the system keeps one: who hides Java means it.
func jdkHomes() []string {
	var homes []string
	if home := os.Getenv("JAVA_HOME"); home != "" {
		homes = append(homes, home)
	}
	if java, err := exec.LookPath("java"); err == nil {
		if java, err = filepath.EvalSymlinks(java); err == nil {
			homes = append(homes, filepath.Dir(filepath.Dir(java)))
		}
	}
	if len(homes) == 0 {
		return nil
	}
	for _, pattern := range []string{"/usr/lib/jvm/*", "/Library/Java/JavaVirtualMachines/*/Contents/Home"} {
		found, _ := filepath.Glob(pattern)
		homes = append(homes, found...)
	}
	return homes
}

// findJDK returns the first of homes that holds a JDK which runs e.
func findJDK(e engine, homes []string) (string, error) {
	if len(homes) == 0 {
		return "", errors.New(e.name + " needs a JDK: no JAVA_HOME and no java on the PATH")
	}
	for _, home := range homes {
		if _, err := os.Stat(filepath.Join(home, "bin", "javac")); err != nil {
			continue
		}
		if v := javaVersion(home); e.minJava <= v && v <= e.maxJava {
			return home, nil
		}
	}
	if e.maxJava < 99 {
		return "", fmt.Errorf("%s needs a JDK of version %d to %d: none in JAVA_HOME, on the PATH or in /usr/lib/jvm", e.name, e.minJava, e.maxJava)
	}
	return "", fmt.Errorf("%s needs a JDK of version %d or newer: none in JAVA_HOME, on the PATH or in /usr/lib/jvm", e.name, e.minJava)
}

// javaVersion returns the feature release of the Java in home (17 for 17.0.15), or 0 if home does not tell. It reads the
// release file that every JDK carries: asking java itself would start a virtual machine for each candidate.
func javaVersion(home string) int {
	release, err := os.ReadFile(filepath.Join(home, "release"))
	if err != nil {
		return 0
	}
	_, version, _ := strings.Cut(string(release), `JAVA_VERSION="`)
	end := strings.IndexFunc(version, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		return 0
	}
	v, _ := strconv.Atoi(version[:end])
	return v
}

// cacheDir returns the folder of e's jars and compiled launcher. Its name holds a hash of all that it is made from, so a
// changed pom or launcher gets a folder of its own and a folder never changes.
func (e engine) cacheDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%s: no folder to keep jars in: %w", e.name, err)
	}
	h := sha256.New()
	for _, name := range []string{"assets/log4j2.properties", e.asset("pom.xml"), e.asset("plugins")} {
		data, err := assets.ReadFile(name)
		if err != nil {
			return "", err
		}
		h.Write(data)
	}
	source, err := e.launcherSource()
	if err != nil {
		return "", err
	}
	h.Write(source)
	return filepath.Join(cache, "weir", "searchnode", e.name+"-"+hex.EncodeToString(h.Sum(nil)[:6])), nil
}

func (e engine) asset(name string) string { return "assets/engines/" + e.name + "/" + name }

// launcherSource returns SearchNode.java for e.
func (e engine) launcherSource() ([]byte, error) {
	source, err := assets.ReadFile("assets/SearchNode.java.in")
	if err != nil {
		return nil, err
	}
	pluginType, load, byInfo := "Class<? extends Plugin>", "byClass", ""
	if e.pluginInfo {
		pluginType, load = "PluginInfo", "byInfo"
		byInfo = `
    static PluginInfo byInfo(String name) {
        return new PluginInfo(name, "module", "NA", Version.CURRENT, "1.8", name, null, List.of(), false);
    }`
	}
	r := strings.NewReplacer("@ROOT@", e.root, "@PLUGIN_TYPE@", pluginType, "@LOAD@", load, "@BY_INFO@", byInfo)
	return []byte(r.Replace(string(source))), nil
}

// prepare returns the folder with e's jars and launcher, and makes it first if it is not there: Maven fetches the jars
// (some 60 MB the first time), javac compiles the launcher. Processes that do this at once do not disturb each other: each
// works in a folder of its own, and the first to rename it wins.
func (e engine) prepare(ctx context.Context, jdk string) (string, error) {
	dir, err := e.cacheDir()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("prepare %s: %w", e.name, err)
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), ".making-"+e.name+"-")
	if err != nil {
		return "", fmt.Errorf("prepare %s: %w", e.name, err)
	}
	defer os.RemoveAll(work)

	source, err := e.launcherSource()
	if err != nil {
		return "", err
	}
	files := map[string][]byte{"SearchNode.java": source}
	for to, from := range map[string]string{"pom.xml": e.asset("pom.xml"), "plugins": e.asset("plugins"), "log4j2.properties": "assets/log4j2.properties"} {
		if files[to], err = fs.ReadFile(assets, from); err != nil {
			return "", err
		}
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(work, name), data, 0o644); err != nil {
			return "", fmt.Errorf("prepare %s: %w", e.name, err)
		}
	}
	lib := filepath.Join(work, "lib")
	if err := e.run(ctx, jdk, "mvn", "-q", "-B", "-f", filepath.Join(work, "pom.xml"), "dependency:copy-dependencies", "-DoutputDirectory="+lib); err != nil {
		return "", err
	}
	if err := e.run(ctx, jdk, filepath.Join(jdk, "bin", "javac"), "--release", strconv.Itoa(e.minJava), "-proc:none", "-nowarn",
		"-cp", filepath.Join(lib, "*"), "-d", filepath.Join(work, "classes"), filepath.Join(work, "SearchNode.java")); err != nil {
		return "", err
	}
	if err := os.Chmod(work, 0o755); err != nil {
		return "", fmt.Errorf("prepare %s: %w", e.name, err)
	}
	if err := os.Rename(work, dir); err != nil {
		if _, statErr := os.Stat(dir); statErr != nil {
			return "", fmt.Errorf("prepare %s: %w", e.name, err)
		}
	}
	return dir, nil
}

// run runs a build tool to its end; its output is in the error.
func (e engine) run(ctx context.Context, jdk, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "JAVA_HOME="+jdk)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("prepare %s: %s: %w: %s", e.name, filepath.Base(name), err, lastBytes(out, 2000))
	}
	return nil
}

func lastBytes(b []byte, n int) string {
	return strings.TrimSpace(string(b[max(0, len(b)-n):]))
}

// command returns the Java command of a node: home is its folder, settings are key=value.
func (e engine) command(jdk, prepared, home, heap string, settings []string) []string {
	command := []string{
		filepath.Join(jdk, "bin", "java"), "-Xms" + heap, "-Xmx" + heap, "-XX:+UseSerialGC",
		"-Dlog4j2.configurationFile=" + filepath.Join(prepared, "log4j2.properties"),
		"-cp", filepath.Join(prepared, "classes") + string(os.PathListSeparator) + filepath.Join(prepared, "lib", "*"),
	}
	if runtime.NumCPU() <= 2 {
		// The optimising compiler takes half of a small machine for the first minute, longer than most tests last.
		command = append(command, "-XX:TieredStopAtLevel=1")
	}
	command = append(command, "SearchNode", home, filepath.Join(prepared, "plugins"))
	return append(command, settings...)
}
